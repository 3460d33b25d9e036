// One attention layer on a backend: a graph of look-ups for query, key and value rows, kv_append and
// attention over a paged cache whose unused memory is NaN. What attention read can be read back, row by row.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "base/thread_pool.h"
#include "graph/graph.h"
#include "verify/bounds.h"
#include "verify/checks/tcq_use.h"
#include "verify/reference/attention.h"
#include "verify/reference/basis.h"

namespace kvasir::verify {

// The bytes of device memory of one backend; freed with the object.
class DeviceBuffer {
 public:
  DeviceBuffer(backends::Backend& backend, size_t bytes)
      : backend_(&backend), data_(bytes ? backend.alloc(bytes) : nullptr), bytes_(bytes) {}
  ~DeviceBuffer() {
    if (data_) backend_->free(data_);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  std::byte* data() const { return data_; }
  // Every byte 0xff: a NaN in every float type, and a NaN scale in every block.
  void poison(size_t begin, size_t end);
  void poison() { poison(0, bytes_); }

 private:
  backends::Backend* backend_;
  std::byte* data_;
  size_t bytes_;
};

struct RigSpec {
  DType k = DType::f32, v = DType::f32;
  int head_dim = 64, n_head = 1, n_kv = 1, window = 0;
  float softcap = 0;
  bool flash = true;
  int exact_first = 0, exact_last = 0;
  std::vector<int> lengths = {1};  // tokens of each sequence
  int max_rows = 64;
  double gain = 1;  // standard deviation of the scores
  bool one_hot =
      false;  // value of position j and KV head h: the unit vector j - h head_dim, zero when out of range
  // Keep only the exact pages that the rule needs after a step, others in the step's own memory; drop what no
  // window sees. Otherwise every page stays, so that every row can be read back.
  bool tight = false;
  // Queries follow from `seed`, keys from it and the type of the keys, values likewise: two runs that share a
  // type share that side's rows.
  uint64_t seed = 1;
  // Positions 3 to 9 of the first sequence hold keys and values that encoders must take care with, instead.
  bool hard_rows = false;
  // One value of the key at this position of the first sequence is `spoil`; none when negative.
  int spoiled = -1;
  float spoil = 0;

  TcqUse tcq{};
  const reference::Codec* codec(DType type) const { return tcq.codec_of(type); }

  // Of the backend it runs on; the rig sets it.
  Kernel kernel = Kernel::kCodes;

  float scale() const;
  reference::AttentionSpec attention() const;
  Arithmetic keys() const { return arithmetic_of(k, kernel); }
  Arithmetic values() const { return arithmetic_of(v, kernel); }
};

// Types that flash attention of this backend cannot multiply: it says so and reads them in single precision,
// but for what in_terms() names.
bool outranges_flash(const backends::Caps& caps, DType type);
// Pairs of them that it multiplies in two bf16 terms all the same (Kernel::kTerms): a few rows, or many.
bool in_terms(const backends::Caps& caps, const RigSpec& spec, bool many_rows);

class Rig {
 public:
  Rig(backends::Backend& backend, const RigSpec& spec);

  // Next n rows of each sequence named, in one step.
  struct Take {
    int seq, n;
  };
  void step(std::span<const Take> takes);
  // Forgets every row from position `pos`, a multiple of 64, on: their pages are NaN again. Not after a tight
  // run.
  void rewind(int pos);
  // All rows of all sequences, sequence after sequence, at most max_rows a step.
  void run_all();

  // Of all tokens, in their order.
  const std::vector<float>& outputs() const { return out_; }
  // [n_head * head_dim] of a row that ran.
  std::span<const float> out(int seq, int pos) const;
  std::span<const float> query(int seq, int pos) const { return row(q_, n_q(), seq, pos); }
  std::span<const float> key(int seq, int pos) const { return row(k_, n_kv_width(), seq, pos); }
  std::span<const float> value(int seq, int pos) const { return row(v_, n_kv_width(), seq, pos); }

  // Wire rows of a page: [64][row bytes] of one KV head; f16 rows for the exact parts.
  std::vector<std::byte> page(int seq, int page, int kv_head, backends::PagePart part) const;
  // What attention reads of each sequence, decoded in double precision into the model's basis. Not after a
  // tight run. `level_codes`: as Arithmetic says; 0: as stored.
  std::vector<reference::Rows> rows(reference::Side side, int level_codes, ThreadPool& workers) const;
  // page() may be called from several threads at once; a device is asked by one.
  bool reads_in_parallel() const { return backend_.caps().name == "cpu"; }
  const graph::KvSpec& kv() const { return graph_.kv[0]; }
  bool has_exact(reference::Side side) const;
  // Changes the stored rows of a page's side: `edit` gets the 64 rows of one KV head in wire form.
  void edit_page(int seq, int page, int kv_head, backends::PagePart part,
                 const std::function<void(std::span<std::byte>)>& edit);
  // "q8_0/q8_0.flash.avx512"
  std::string variant() const;
  std::vector<std::string> describe() const { return executable_->describe(); }
  const RigSpec& spec() const { return spec_; }
  // With the kernel that a row met in its step.
  RigSpec spec_of(int seq, int pos) const;
  graph::Graph& graph() { return graph_; }

 private:
  int n_q() const { return spec_.n_head * spec_.head_dim; }
  int n_kv_width() const { return spec_.n_kv * spec_.head_dim; }
  int token(int seq, int pos) const { return first_token_[size_t(seq)] + pos; }
  std::span<const float> row(const std::vector<float>& table, int width, int seq, int pos) const {
    return {table.data() + size_t(token(seq, pos)) * size_t(width), size_t(width)};
  }
  void make_tables();
  void make_hard_rows(std::vector<float>& table) const;
  void make_graph();
  void make_cache();
  void place_pages(int seq, int begin, int end);
  void drop_pages(int seq, int end);
  int take_exact();

  backends::Backend& backend_;
  RigSpec spec_;
  std::vector<int> first_token_;
  std::vector<float> q_, k_, v_, out_;
  graph::Graph graph_;
  graph::ValueId out_value_ = graph::kNone;
  std::unique_ptr<DeviceBuffer> pages_, exact_;
  std::vector<std::vector<int32_t>> tables_, exact_tables_;
  std::vector<int32_t> free_exact_;
  int n_exact_ = 0, n_staged_ = 0;
  std::vector<int> done_;
  std::vector<bool> in_few_;  // by token: its step had few rows
  bool prompt_in_terms_ = false;
  std::unique_ptr<backends::Executable> executable_;
};

}  // namespace kvasir::verify
