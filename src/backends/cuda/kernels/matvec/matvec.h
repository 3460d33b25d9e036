// Matrices times a few rows (decode): y = act(w . x) * mul + residual, up to three matrices of one form over
// the same rows, or a gated pair y = act(w . x) * (w2 . x). Activations are int8 groups for quantised forms
// and f32 for the others. Bound: the matrix is read once; bytes of w over memory bandwidth.
#pragma once
#include "backends/cuda/kernels/args.h"
#include "backends/cuda/kernels/elementwise/elementwise.h"

namespace kvasir::cuda {

inline constexpr int kMaxMatvecRows = 16;

struct MatvecPart {
  MatrixView w;
  MatrixView w2;      // gated pair when its form is not kNone
  int first_row = 0;  // rows of w from here on
  int n_out = 0;
  float* out = nullptr;        // [n_rows][n_out]
  const float* mul = nullptr;  // [n_rows][mul_stride], or null
  int mul_stride = 0;
  const float* residual = nullptr;  // [n_rows][n_out], or null
  bool gelu = false;
  float softcap = 0;  // > 0: cap * tanh(y / cap)
};

struct MatvecArgs {
  MatvecPart parts[3];
  int n_parts = 1;
  int n_in = 0;
  int n_rows = 0;            // <= kMaxMatvecRows
  const float* x = nullptr;  // [n_rows][n_in]
  QuantRows quant;           // the same rows
};

constexpr bool wants_int8(WeightForm form) { return form >= WeightForm::kQ8; }
void matvec(const Launch& how, const MatvecArgs& args);

// The same for one row and int8 activations, which it makes itself: from the row, or from the norm (or pair
// of norms) that gives it; then the first block stores the first norm's output where `norm` has a place for
// it (norm.second is not stored). The weights are on their way before the row exists.
struct StreamArgs {
  MatvecArgs product;  // n_rows 1; `quant`: of the first `made_groups` groups of the row, the others not read
  int made_groups = 0;  // by the launch that left the row: StreamArgs::groups of that one
  NormArgs norm;     // x null: product.x holds the row; else n <= kMaxNormedRow, the row is its last output
  QuantRows groups;  // of the outputs of one part: the first stream_groups() are left there; q null: none
  uint64_t* best =
      nullptr;         // raised to the greatest key (choose.h) of the outputs of one part; null: not wanted
  bool large = false;  // every second launch: its blocks stand on a multiprocessor each (stream.cuh)
  int multiprocessors = 0;  // to deal rows to; 0: the device's
  // Two products of one row that need nothing of each other: the first lets the other start when the row is
  // there, and that one does not wait for it but at its end.
  bool leads = false, beside = false;  // beside: n_in <= kMaxNormedRow
};
inline constexpr int kMaxStreamRow = 24576, kMaxNormedRow = 6144;
bool can_stream(const MatvecArgs& product);  // forms and sizes only
// How many groups of 32 outputs the launch would leave in StreamArgs::groups.
int stream_groups(const MatvecArgs& product, int multiprocessors = 0);
void stream_matvec(const Launch& how, const StreamArgs& args);

}  // namespace kvasir::cuda
