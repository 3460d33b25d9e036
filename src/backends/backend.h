// What every backend offers. A backend knows graphs, weights and buffers; it never knows models or
// sessions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "graph/choice.h"
#include "graph/graph.h"

namespace kvasir::backends {

struct Caps {
  std::string name;           // "cpu"
  std::string device;         // what the device calls itself
  std::string isa;            // "avx512"
  std::string uuid;           // which device exactly: "GPU-..." of a GPU, family, model and stepping of a CPU
  std::string driver;         // "CUDA 13.0"; empty where there is none
  uint64_t memory_bytes = 0;  // of the device
  std::vector<DType> weight_types;
  std::vector<DType> kv_types;  // attention has a variant for keys or values of this type
  std::vector<int> head_dims;
};

enum class FlashAttention : uint8_t { kOn, kOff };

// What the engine (later: decide) chose for this model on this device.
struct Decisions {
  FlashAttention flash = FlashAttention::kOn;
  int n_seq = 1;                  // sequences a step may mix
  bool trace = false;             // collect time per op
  bool keep_values = false;       // give every value its own memory so that inspect() works (tests)
  bool portable_kernels = false;  // none that only the newest devices run
};

// Device memory of one graph's KV caches: data[i] belongs to Graph::kv[i] and holds n_pages[i] pages,
// exact[i] its n_exact[i] exact pages (null when no type of it encodes whole pages).
struct KvBuffers {
  std::vector<std::byte*> data;
  std::vector<int> n_pages;
  std::vector<std::byte*> exact;
  std::vector<int> n_exact;
};

// Sides of a page, or of an exact page.
enum class PagePart : uint8_t { kKeys, kValues, kExactKeys, kExactValues };

// Called when a part of a weight's source bytes (its `data`) is no longer needed; it can be read again from
// the file.
using DropSource = std::function<void(const graph::Weight&)>;

struct TraceRow {
  std::string op;
  int layer = -1;
  double seconds = 0;
  double bytes = 0;  // read, by formula
  double flops = 0;
};

// What steps cost beside their kernels, since the executable was compiled.
struct Counters {
  uint64_t steps = 0;           // each one launch of a graph, or one row of launches
  uint64_t uploaded_bytes = 0;  // parameters and page tables
  uint64_t allocations = 0;     // of device and page-locked memory by this process
  uint64_t early_tiles =
      0;                 // caches whose pages were made ready for a prompt's attention as they were encoded
  uint64_t repeats = 0;  // steps run once more, for a value that early tiles could not hold
};

// A token that an output row may choose.
struct Candidate {
  float logit = 0;
  int32_t token = 0;
};
inline constexpr int kMaxCandidates = 128;

// A graph compiled for at most `max_rows` rows a step, and what a step leaves. It refers to the weights that
// its backend uploaded last.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual int max_rows() const = 0;
  // One line a layer class: head size, variant, KV types, flash attention state.
  virtual std::vector<std::string> describe() const = 0;
  // Runs one step. Throws Error{kFailed} naming layer and token when a key or value is not finite.
  virtual void submit(const graph::StepParams& step) = 0;
  // Waits for the last submit; logits of output row i ([n_vocab]), in row order. Valid until the next submit.
  virtual std::span<const float> read(int output_row) = 0;
  // The `n` (1 to kMaxCandidates) tokens with the greatest logits of output row i after the last submit, best
  // first and the lower token first among equals, chosen on the device; fewer when the vocabulary has fewer.
  // Empty when the backend leaves the choice to the caller (read). Valid until the next call.
  virtual std::span<const Candidate> best(int /*output_row*/, int /*n*/) { return {}; }
  // Steps that need not come back before the next one starts: each has one row, and the token after it is
  // chosen on the device as `choice` says (n_best 1 to kMaxCandidates). Where an executable chooses(), the
  // row's token may be graph::kChosenToken: the one that the step submitted ahead before it chose. At most
  // two are queued; chosen() waits for the oldest, gives the token after it, and throws as submit() does.
  virtual bool chooses() const { return false; }
  virtual void submit_ahead(const graph::StepParams&, const graph::Choice& /*choice*/) {
    fail(ErrorCode::kRefused, "this backend cannot queue steps");
  }
  virtual int32_t chosen() { fail(ErrorCode::kRefused, "this backend cannot queue steps"); }
  // Value by name after a step, for tests ([n_rows, width]); empty when it was not kept.
  virtual std::span<const float> inspect(graph::ValueId value) = 0;
  // Of the last step, when it was compiled to be traced.
  virtual std::vector<TraceRow> trace() const = 0;
  // All zero where nothing is counted.
  virtual Counters counters() const { return {}; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Caps caps() const = 0;
  virtual std::byte* alloc(size_t bytes) = 0;  // zeroed; throws Error{kNoMemory}
  virtual void free(std::byte* buffer) = 0;
  // Device memory that nobody uses now; 0 where the host's memory is used, or unknown.
  virtual uint64_t free_bytes() { return 0; }
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;  // `from`: device or host memory
  // The 64 rows of one KV head in wire form (Format::row_bytes each), or of an exact page as f16 in the
  // type's basis. `page` points into a buffer of alloc(), `rows` is host memory.
  virtual void read_page(const graph::KvSpec&, PagePart, int /*kv_head*/, const std::byte* /*page*/,
                         std::byte* /*rows*/) {
    fail(ErrorCode::kRefused, "{}: pages of the KV cache cannot be read back", caps().name);
  }
  // The exact inverse: 64 rows of one KV head into a page.
  virtual void write_page(const graph::KvSpec&, PagePart, int /*kv_head*/, std::byte* /*page*/,
                          const std::byte* /*rows*/) {
    fail(ErrorCode::kRefused, "{}: pages of the KV cache cannot be written from outside", caps().name);
  }
  // Prepares the weights of `graph` (repacking); `progress` gets 0..1.
  virtual void upload(const graph::Graph& graph, const DropSource& drop,
                      const std::function<void(float)>& progress) = 0;
  virtual std::unique_ptr<Executable> compile(const graph::Graph& graph, const Decisions& decisions,
                                              const KvBuffers& kv, int max_rows) = 0;
};

}  // namespace kvasir::backends
