// Declares the tile function of every row of variants.def, and the macros by which an ISA file defines its
// own.
#pragma once
#include "backends/cpu/kernels/matmul/variant.h"

namespace kvasir::cpu::matmul {

#define KVASIR_MATMUL(type, isa, form)                                                                \
  void tile_##type##_##isa(const PackedMatrix& w, const Activations& x, int64_t panel, int row_begin, \
                           int n_rows, float* acc);
#include "backends/cpu/kernels/matmul/variants.def"
#undef KVASIR_MATMUL

// In an ISA file: KVASIR_TILE(q8_0, avx512, Int8Tile, Avx512Vector)
#define KVASIR_TILE(type, isa, Tile, Vector)                                                          \
  void tile_##type##_##isa(const PackedMatrix& w, const Activations& x, int64_t panel, int row_begin, \
                           int n_rows, float* acc) {                                                  \
    Tile<Vector, WeightLayout<DType::type>>::run(w, x, panel, row_begin, n_rows, acc);                \
  }

}  // namespace kvasir::cpu::matmul
