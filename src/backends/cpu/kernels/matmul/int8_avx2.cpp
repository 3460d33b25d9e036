#include "backends/cpu/kernels/matmul/int8_tile.h"
#include "backends/cpu/kernels/matmul/simd_avx2.h"
#include "backends/cpu/kernels/matmul/tiles.h"
#include "backends/cpu/kernels/matmul/types/all.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(q8_0, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(q4_0, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(q4_1, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(q5_0, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(q5_1, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(iq4_nl, avx2, Int8Tile, Avx2Vector)

}  // namespace kvasir::cpu::matmul
