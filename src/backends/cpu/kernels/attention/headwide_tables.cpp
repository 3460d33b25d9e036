#include "backends/cpu/kernels/attention/headwide_tables.h"

#include <array>

#include "backends/cpu/kernels/attention/attention.h"
#include "formats/tbq_h.h"

namespace kvasir::cpu {
namespace {

template <int b>
constexpr HeadWideTable make_table(int head_dim) {
  constexpr int n = 1 << b;
  const auto& book = formats::head_codebook<b>(head_dim);
  HeadWideTable table{};
  table.step = book.level[n - 1] / 127.0f;
  for (int i = 0; i < 16; ++i) {
    table.level[i] = book.level[size_t(i % n)];
    table.midpoint[i] = book.midpoint[size_t(i % n < n - 1 ? i % n : 0)];
    const float x = table.level[i] / table.step;
    table.rounded[i] = int8_t(x < 0 ? x - 0.5f : x + 0.5f);
  }
  return table;
}

template <int b>
constexpr HeadWideTable kTables[4] = {make_table<b>(64), make_table<b>(128), make_table<b>(256),
                                      make_table<b>(512)};

struct Signs {
  std::array<float, kMaxHeadDim> of[2];
  Signs() {
    for (size_t i = 0; i < kMaxHeadDim; ++i) {
      of[0][i] = formats::head_sign(formats::kKeys, int(i)) < 0 ? -0.0f : 0.0f;
      of[1][i] = formats::head_sign(formats::kValues, int(i)) < 0 ? -0.0f : 0.0f;
    }
  }
};

}  // namespace

const HeadWideTable& head_wide_table(int bits, int head_dim) {
  const int size = head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : head_dim <= 256 ? 2 : 3;
  return bits == 2 ? kTables<2>[size] : bits == 3 ? kTables<3>[size] : kTables<4>[size];
}

const float* head_wide_signs(KvSide side) {
  static const Signs signs;
  return signs.of[side == KvSide::kValue].data();
}

}  // namespace kvasir::cpu
