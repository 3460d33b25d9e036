// Weights on the device: from GGUF's blocks to planes (args.h), and back to f32 or f16 rows. Every value
// decodes to the scalar codec's f32, bit for bit.
#pragma once
#include "backends/cuda/kernels/args.h"
#include "tensor/dtype.h"

namespace kvasir::cuda {

// kNone when the type has no device form.
WeightForm weight_form(DType type);
// Throws: no kernel of that name takes the form.
[[noreturn]] void refuse_form(const char* kernel, WeightForm form);
// Bytes of each plane of an [n_out][n_in] matrix.
struct PlaneBytes {
  int64_t codes = 0, high = 0, aux = 0, aux2 = 0;
};
PlaneBytes plane_bytes(WeightForm form, int64_t n_in, int64_t n_out);

// Rows [first, first + n) of the matrix from raw blocks (device memory).
void repack(const Launch& how, DType type, const uint8_t* raw, const MatrixView& to, int first, int n);
// to[n_out][n_in] in f16.
void expand_half(const Launch& how, const MatrixView& w, int first, int n, uint16_t* to);
// out[r][i] = value i of row token(r) * scale. Also the second part of per_layer_embed: see finish_per_layer.
void embed_rows(const Launch& how, const MatrixView& table, const StepView& step, int n_rows, float scale,
                float* out);
// In place, x [n_rows][width] = the projection of the embedding:
//   x = (RMS_groups(x * scale) * norm + row(token)[offset..] * sqrt(group)) / sqrt(2)
struct PerLayerArgs {
  MatrixView table;
  const float* norm = nullptr;  // [group]
  float* x = nullptr;
  int width = 0, group = 0, offset = 0;
  float scale = 1, eps = 0;
  bool output_rows = false;
};
void finish_per_layer(const Launch& how, const PerLayerArgs& args, const StepView& step, int n_rows);

}  // namespace kvasir::cuda
