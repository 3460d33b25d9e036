// What host and device share: views of weights, quantised activations, the step in flight. Plain data, no
// vendor type but the stream.
#pragma once
#include <cstddef>
#include <cstdint>

#include "backends/cuda/kernels/kv_forms/forms.h"
#include "graph/graph.h"

struct CUstream_st;

namespace kvasir::cuda {

// How a kernel is put on its stream. With `overlap` it may start before the kernel before it has ended
// (programmatic dependent launch): every kernel of this backend waits for that one itself before it reads
// what others wrote.
struct Launch {
  CUstream_st* stream = nullptr;
  bool overlap = false;
};

// The vendor's calls that kernel files need, made by the runtime (runtime/launch.cpp).
struct LaunchShape {
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  size_t shared = 0;  // dynamic, bytes
  size_t shared_most =
      0;  // of any launch of this kernel, when they differ: launches in a graph share the limit
};
void launch_kernel(const Launch& how, const LaunchShape& shape, const void* kernel, void** arguments);
void copy_on_device(const Launch& how, void* to, const void* from, size_t bytes);
bool kernel_loads(const void* kernel);
// Bytes of shared memory a block may have on the current device.
size_t shared_memory_limit();
int multiprocessors();
// Rows of 16-bit values in memory, for copies of boxes of 64 rows by 64 values into shared memory, piece p of
// row r at p ^ (r % 8) (sm_90). The words are the vendor's.
struct alignas(64) RowsMap {
  uint64_t words[16] = {};
};
RowsMap map_rows(const void* rows, int n_values);
// It multiplies by warp groups (sm_90).
bool has_warp_group_products();

// Storage of a weight matrix on the device. Quantised rows are split into planes of whole 32-value groups, so
// that every load is 16 bytes wide and aligned:
//   codes  16 bytes a group (byte j: value j low nibble, value 16 + j high nibble); q8: 32 bytes, values in
//   order high   one bit: a word a group, bit 8 b + k is bit 4 of byte b of code word k (words 0..3 low, 4..7
//   high nibbles)
//          two bits: two words a group, bits 8 b + 2 k of word k / 4 for code word k
//          (q2_k, q3_k keep the low two bits of their codes so, as `codes`)
//   aux    f16 scale (and f16 minimum) a group, or the 16-byte header of a 256-value block, or two int8
//   scales a group aux2   f16 scale a 256-value block (q6_k)
enum class WeightForm : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8,
  kQ4,
  kQ4M,
  kQ5,
  kQ5M,
  kQ4K,
  kQ5K,
  kQ6K,
  kQ2K,
  kQ3K,
  kIq4Nl,
  kIq4Xs,
  kNone
};

struct MatrixView {
  WeightForm form = WeightForm::kNone;
  int n_in = 0, n_out = 0;
  const uint8_t* codes = nullptr;
  const uint8_t* high = nullptr;
  const uint8_t* aux = nullptr;
  const uint8_t* aux2 = nullptr;
};

// Bytes a 32-value group takes in each plane.
struct GroupBytes {
  int codes, high;
  double aux, aux2;
};
constexpr GroupBytes group_bytes(WeightForm form) {
  switch (form) {
    case WeightForm::kF32:
      return {128, 0, 0, 0};
    case WeightForm::kF16:
    case WeightForm::kBf16:
      return {64, 0, 0, 0};
    case WeightForm::kQ8:
      return {32, 0, 2, 0};
    case WeightForm::kQ4:
      return {16, 0, 2, 0};
    case WeightForm::kQ4M:
      return {16, 0, 4, 0};
    case WeightForm::kQ5:
      return {16, 4, 2, 0};
    case WeightForm::kQ5M:
      return {16, 4, 4, 0};
    case WeightForm::kQ4K:
      return {16, 0, 2, 0};
    case WeightForm::kQ5K:
      return {16, 4, 2, 0};
    case WeightForm::kQ6K:
      return {16, 8, 2, 0.25};
    case WeightForm::kQ2K:
      return {8, 0, 2, 0.5};
    case WeightForm::kQ3K:
      return {8, 4, 2, 0.25};
    case WeightForm::kIq4Nl:
      return {16, 0, 2, 0};
    case WeightForm::kIq4Xs:
      return {16, 0, 1, 0.25};
    case WeightForm::kNone:
      break;
  }
  return {0, 0, 0, 0};
}

// Rows as int8 with one scale a 32-value group: x = scale * q. `sums` of a group holds the sums of its halves
// of q as two int16 (low: values 0..15).
struct GroupMeta {
  float scale;
  int32_t sums;
};
struct QuantRows {
  int8_t* q = nullptr;        // [rows][n]
  GroupMeta* meta = nullptr;  // [rows][n / 32]
};

// One sequence of the step in flight, as the device sees it.
struct SequenceInfo {
  int32_t shift = 0;
  int32_t keep_pages = 0;
  int32_t first_pos[2] = {0, 0};
};

// The step in flight. tables: [n_seq][global, sliding][page, exact][table_stride].
struct StepView {
  const graph::Row* rows = nullptr;
  const int32_t* out_rows = nullptr;  // step row of each output row
  const SequenceInfo* sequences = nullptr;
  const int32_t* tables = nullptr;
  int table_stride = 0;
  const uint64_t* chosen = nullptr;  // key of the token that the step before chose (graph::kChosenToken)
};

// One KV cache on the device.
struct KvView {
  KvForm k_form{}, v_form{};
  int n_kv = 0, head_dim = 0, window = 0;
  int exact_first = 0, exact_last = 0;
  uint8_t* pages = nullptr;
  int64_t page_bytes = 0;
  uint8_t* exact = nullptr;       // [n_exact] exact pages of the cache
  uint8_t* step_exact = nullptr;  // those that live for one step
  int n_exact = 0;
  int64_t exact_page_bytes = 0;
  KvTables tables;
};

// Pages that the rows of a prompt see, as the tiles its kernel multiplies: [page][KV head][side][term], f16
// in units of a power of two (1 unless f16 cannot hold it), or bf16 of a cache of f32 (two terms).
// Encoded sides always, others if `plain`. Longer ranges are taken in turns.
struct PageTiles {
  uint8_t* tiles = nullptr;
  float* units = nullptr;
  int capacity = 0;                      // pages
  int sequence = 0, first = 0, end = 0;  // whose pages, and which
  int oldest = 0, newest = 0;            // positions seen
  bool plain = false;
  int made_from = 1 << 30;  // attention: from this page on they stand there
  int older_end = 0;        // heads: whole pages before this one are made tiles beside them
};
constexpr int64_t page_tile_bytes(int head_dim) { return int64_t(graph::kPageTokens) * head_dim * 2; }
constexpr int tile_terms(KvForm form) { return form == KvForm::kF32 ? 2 : 1; }
// Of a page, both sides.
constexpr int page_tiles(const KvView& kv) { return kv.n_kv * 2 * tile_terms(kv.k_form); }

}  // namespace kvasir::cuda
