#include "backends/cpu/kernels/matmul/float_tile.h"
#include "backends/cpu/kernels/matmul/simd_neon.h"
#include "backends/cpu/kernels/matmul/tiles.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(f32, neon, FloatTile, NeonVector)
KVASIR_TILE(f16, neon, FloatTile, NeonVector)
KVASIR_TILE(bf16, neon, FloatTile, NeonVector)

}  // namespace kvasir::cpu::matmul
