#include "backends/cpu/kernels/matmul/int8_tile.h"
#include "backends/cpu/kernels/matmul/simd_avx2.h"
#include "backends/cpu/kernels/matmul/tiles.h"
#include "backends/cpu/kernels/matmul/types/all.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(q2_k, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(q3_k, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(q4_k, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(q5_k, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(q6_k, avx2, Int8Tile, Avx2Vector)
KVASIR_TILE(iq4_xs, avx2, Int8Tile, Avx2Vector)

}  // namespace kvasir::cpu::matmul
