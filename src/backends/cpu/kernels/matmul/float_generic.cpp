#include "backends/cpu/kernels/matmul/float_tile.h"
#include "backends/cpu/kernels/matmul/simd_generic.h"
#include "backends/cpu/kernels/matmul/tiles.h"

namespace kvasir::cpu::matmul {

KVASIR_TILE(f32, generic, FloatTile, GenericVector)
KVASIR_TILE(f16, generic, FloatTile, GenericVector)
KVASIR_TILE(bf16, generic, FloatTile, GenericVector)

}  // namespace kvasir::cpu::matmul
