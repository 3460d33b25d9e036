#include "backends/cpu/kernels/matmul/float_tile.h"
#include "backends/cpu/kernels/matmul/simd_avx2.h"
#include "backends/cpu/kernels/matmul/tiles.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(f32, avx2, FloatTile, Avx2Vector)
KVASIR_TILE(f16, avx2, FloatTile, Avx2Vector)
KVASIR_TILE(bf16, avx2, FloatTile, Avx2Vector)

}  // namespace kvasir::cpu::matmul
