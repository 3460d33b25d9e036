#include "backends/cpu/kernels/matmul/float_tile.h"
#include "backends/cpu/kernels/matmul/simd_avx512.h"
#include "backends/cpu/kernels/matmul/tiles.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(f32, avx512, FloatTile, Avx512Vector)
KVASIR_TILE(f16, avx512, FloatTile, Avx512Vector)
KVASIR_TILE(bf16, avx512, FloatTile, Avx512Vector)

}  // namespace kvasir::cpu::matmul
