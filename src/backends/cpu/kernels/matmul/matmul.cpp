#include "backends/cpu/kernels/matmul/matmul.h"

#include <array>
#include <vector>

#include "backends/cpu/kernels/matmul/activation.h"
#include "backends/cpu/kernels/matmul/pack.h"
#include "backends/cpu/kernels/matmul/tiles.h"

namespace kvasir::cpu {
namespace {

constexpr Isa isa_of(std::string_view name) {
  return name == "avx512" ? Isa::kAvx512
         : name == "avx2" ? Isa::kAvx2
         : name == "neon" ? Isa::kNeon
                          : Isa::kGeneric;
}

constexpr MatmulVariant kVariants[] = {
#define KVASIR_MATMUL(type, isa, form) \
  {DType::type,                        \
   isa_of(#isa),                       \
   #type "." #isa,                     \
   ActivationForm::form,               \
   matmul::tile_##type##_##isa,        \
   matmul::pack_panel<DType::type>,    \
   matmul::row_bytes<DType::type>,     \
   matmul::panel_bytes<DType::type>},
#include "backends/cpu/kernels/matmul/variants.def"
#undef KVASIR_MATMUL
};

// Whether a variant of `have` may run where `isa` may.
bool covers(Isa isa, Isa have) {
  if (have == Isa::kGeneric || have == isa) return true;
  return isa == Isa::kAvx512 && have == Isa::kAvx2;
}

matmul::QuantizeFn quantize_function(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return matmul::quantize_rows_avx512;
  if (isa == Isa::kAvx2) return matmul::quantize_rows_avx2;
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return matmul::quantize_rows_neon;
#endif
  (void)isa;
  return matmul::quantize_rows_generic;
}

}  // namespace

const MatmulVariant* find_matmul(DType type, Isa isa) {
  const MatmulVariant* best = nullptr;
  for (const MatmulVariant& v : kVariants)
    if (v.type == type && covers(isa, v.isa)) best = &v;  // later rows of a type are faster
  return best;
}

const char* matmul_name(const MatmulVariant& variant) { return variant.name; }
ActivationForm activation_form(const MatmulVariant& variant) { return variant.form; }

std::span<const MatmulVariant* const> matmul_variants() {
  static const std::vector<const MatmulVariant*> list = [] {
    std::vector<const MatmulVariant*> out;
    for (const MatmulVariant& v : kVariants)
      if (cpu_supports(v.isa)) out.push_back(&v);
    return out;
  }();
  return list;
}

size_t packed_bytes(const MatmulVariant& variant, int64_t n_in, int64_t n_out) {
  return variant.panel_bytes(n_in) * size_t((n_out + kPanelRows - 1) / kPanelRows);
}

void pack_panels(const MatmulVariant& variant, const std::byte* rows, int64_t n_in, int64_t n_out,
                 int64_t begin, int64_t end, std::byte* packed) {
  const size_t row_bytes = variant.row_bytes(n_in), panel_bytes = variant.panel_bytes(n_in);
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * kPanelRows;
    const int n_valid = int(n_out - first < kPanelRows ? n_out - first : kPanelRows);
    variant.pack(rows + size_t(first) * row_bytes, row_bytes, n_valid, n_in,
                 packed + size_t(panel) * panel_bytes);
  }
}

size_t quantized_bytes(int64_t n_in, int n_rows) {
  return matmul::activation_stride(n_rows) * size_t((n_in + matmul::kBlock - 1) / matmul::kBlock);
}

void quantize_rows(Isa isa, const float* x, int64_t stride, int64_t n_in, int n_rows, int begin, int end,
                   std::byte* packed) {
  quantize_function(isa)(x, stride, n_in, n_rows, begin, end, packed);
}

void matmul_tile(const PackedMatrix& w, const Activations& x, int64_t panel, int row_begin, int n_rows,
                 float* acc) {
  w.variant->tile(w, x, panel, row_begin, n_rows, acc);
}

}  // namespace kvasir::cpu
