// y[r][o] = dot(W row o, x row r) for every weight type.
//
// Weights are repacked once into panels of 32 output rows so that one stream of bytes feeds both one row
// (decode) and many (prefill). Quantised weights meet int8 activations (blocks of 32, one f32 scale a block);
// float weights meet f32.
//   int8:  y = sum over blocks b of da[r][b] * ( s[o][b] * sum_k u[o][k] * a[r][k]  +  m[o][b] * sum_k
//   a[r][k] )
//          u: unsigned codes, s: scale, m: min or -offset * s; blocks in rising order, one f32 accumulator.
//   float: y = sum_k w[o][k] * x[r][k], k rising, one f32 FMA chain.
// A row's bits do not depend on how many rows are computed together, nor on threads (only on the ISA row).
// Bound: decode reads packed_bytes once; prefill costs 2 * n_in * n_out * n_rows operations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned.h"
#include "base/cpu_features.h"
#include "tensor/dtype.h"

namespace kvasir::cpu {

inline constexpr int kPanelRows = 32;     // output rows a panel
inline constexpr int kMaxTileRows = 128;  // activation rows a tile() call may take

enum class ActivationForm : uint8_t { kF32, kInt8 };

struct MatmulVariant;  // one row of variants.def: (weight type, ISA)

struct PackedMatrix {
  const MatmulVariant* variant = nullptr;
  DType type{};
  int64_t n_in = 0, n_out = 0;
  AlignedBuffer data;
  int64_t n_panels() const { return (n_out + kPanelRows - 1) / kPanelRows; }
};

// Activations of up to n_rows rows in the form a variant wants.
//  kF32:  rows as they are (f32 pointer + stride in floats); nothing is copied.
//  kInt8: `packed` laid out by quantize_rows().
struct Activations {
  ActivationForm form{};
  int n_rows = 0;
  int64_t n_in = 0;
  const float* f32 = nullptr;
  int64_t stride = 0;
  const std::byte* packed = nullptr;
};

// The fastest variant for `type` on `isa` or below; nullptr when the type cannot be multiplied at all.
const MatmulVariant* find_matmul(DType type, Isa isa);
const char* matmul_name(const MatmulVariant& variant);  // "q8_0.avx512"
ActivationForm activation_form(const MatmulVariant& variant);
// Every row of variants.def this CPU can run, for tests and benchmarks.
std::span<const MatmulVariant* const> matmul_variants();

// n_in must be a multiple of the type's block (and, for kInt8, of 32).
size_t packed_bytes(const MatmulVariant& variant, int64_t n_in, int64_t n_out);
// Repacks panels [begin, end) from GGUF rows; independent panels may run on different threads.
void pack_panels(const MatmulVariant& variant, const std::byte* rows, int64_t n_in, int64_t n_out,
                 int64_t begin, int64_t end, std::byte* packed);

// Bytes `quantize_rows` needs for n_rows rows.
size_t quantized_bytes(int64_t n_in, int n_rows);
// Quantises rows [begin, end) of x (stride in floats) into `packed`, laid out for n_rows rows in all. Values
// must be finite.
void quantize_rows(Isa isa, const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                   std::byte* packed);

// acc[i][0..32) = y[row_begin + i][panel*32 ..) for i < n_rows <= kMaxTileRows; columns past n_out are zero.
void matmul_tile(const PackedMatrix& w, const Activations& x, int64_t panel, int row_begin, int n_rows,
                 float* acc);

}  // namespace kvasir::cpu
