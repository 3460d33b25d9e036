#include "backends/cpu/kernels/matmul/int8_tile.h"
#include "backends/cpu/kernels/matmul/simd_generic.h"
#include "backends/cpu/kernels/matmul/tiles.h"
#include "backends/cpu/kernels/matmul/types/all.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(q2_k, generic, Int8Tile, GenericVector)
KVASIR_TILE(q3_k, generic, Int8Tile, GenericVector)
KVASIR_TILE(q4_k, generic, Int8Tile, GenericVector)
KVASIR_TILE(q5_k, generic, Int8Tile, GenericVector)
KVASIR_TILE(q6_k, generic, Int8Tile, GenericVector)
KVASIR_TILE(iq4_xs, generic, Int8Tile, GenericVector)

}  // namespace kvasir::cpu::matmul
