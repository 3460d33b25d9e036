#include "backends/cpu/kernels/matmul/int8_tile.h"
#include "backends/cpu/kernels/matmul/simd_generic.h"
#include "backends/cpu/kernels/matmul/tiles.h"
#include "backends/cpu/kernels/matmul/types/all.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(q8_0, generic, Int8Tile, GenericVector)
KVASIR_TILE(q4_0, generic, Int8Tile, GenericVector)
KVASIR_TILE(q4_1, generic, Int8Tile, GenericVector)
KVASIR_TILE(q5_0, generic, Int8Tile, GenericVector)
KVASIR_TILE(q5_1, generic, Int8Tile, GenericVector)
KVASIR_TILE(iq4_nl, generic, Int8Tile, GenericVector)

}  // namespace kvasir::cpu::matmul
