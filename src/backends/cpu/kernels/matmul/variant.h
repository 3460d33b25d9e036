// One row of variants.def. Internal to the matmul kernels.
#pragma once
#include "backends/cpu/kernels/matmul/matmul.h"

namespace kvasir::cpu {

using TileFn = void (*)(const PackedMatrix& w, const Activations& x, int64_t panel, int row_begin, int n_rows,
                        float* acc);
// Repacks one panel: `n_valid` GGUF rows (1..32), row_bytes apart; missing rows become zeros.
using PackFn = void (*)(const std::byte* rows, size_t row_bytes, int n_valid, int64_t n_in, std::byte* panel);

struct MatmulVariant {
  DType type;
  Isa isa;
  const char* name;  // "q8_0.avx512"
  ActivationForm form;
  TileFn tile;
  PackFn pack;
  size_t (*row_bytes)(int64_t n_in);    // of a GGUF row
  size_t (*panel_bytes)(int64_t n_in);  // of a packed panel
};

}  // namespace kvasir::cpu
