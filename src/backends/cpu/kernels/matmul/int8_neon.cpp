#include "backends/cpu/kernels/matmul/int8_tile.h"
#include "backends/cpu/kernels/matmul/simd_neon.h"
#include "backends/cpu/kernels/matmul/tiles.h"
#include "backends/cpu/kernels/matmul/types/all.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(q8_0, neon, Int8Tile, NeonVector)
KVASIR_TILE(q4_0, neon, Int8Tile, NeonVector)
KVASIR_TILE(q4_1, neon, Int8Tile, NeonVector)
KVASIR_TILE(q5_0, neon, Int8Tile, NeonVector)
KVASIR_TILE(q5_1, neon, Int8Tile, NeonVector)
KVASIR_TILE(iq4_nl, neon, Int8Tile, NeonVector)

}  // namespace kvasir::cpu::matmul
