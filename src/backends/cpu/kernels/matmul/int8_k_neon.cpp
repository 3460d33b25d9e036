#include "backends/cpu/kernels/matmul/int8_tile.h"
#include "backends/cpu/kernels/matmul/simd_neon.h"
#include "backends/cpu/kernels/matmul/tiles.h"
#include "backends/cpu/kernels/matmul/types/all.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(q2_k, neon, Int8Tile, NeonVector)
KVASIR_TILE(q3_k, neon, Int8Tile, NeonVector)
KVASIR_TILE(q4_k, neon, Int8Tile, NeonVector)
KVASIR_TILE(q5_k, neon, Int8Tile, NeonVector)
KVASIR_TILE(q6_k, neon, Int8Tile, NeonVector)
KVASIR_TILE(iq4_xs, neon, Int8Tile, NeonVector)

}  // namespace kvasir::cpu::matmul
