// GGUF rows -> panels, for every weight type. Scalar: it runs once a tensor.
#pragma once
#include "backends/cpu/kernels/matmul/types/all.h"

namespace kvasir::cpu::matmul {

template <DType kType>
size_t row_bytes(int64_t n_in) {
  using W = WeightLayout<kType>;
  if constexpr (W::kQuantised)
    return size_t(n_in) / (32 * W::kUnitBlocks) * W::kSourceBytes;
  else
    return size_t(n_in) * W::kValueBytes;
}

template <DType kType>
size_t panel_bytes(int64_t n_in) {
  using W = WeightLayout<kType>;
  if constexpr (W::kQuantised)
    return size_t(n_in) / (32 * W::kUnitBlocks) * W::kUnitBytes;
  else
    return W::panel_bytes(n_in);
}

template <class W>
void pack_unit(const std::byte* source, size_t row_bytes, int n_valid, std::byte* unit) {
  std::memset(unit, 0, W::kUnitBytes);
  for (int row = 0; row < n_valid; ++row, source += row_bytes) {
    uint8_t codes[32 * W::kUnitBlocks];
    W::unpack(source, codes);
    W::pack_scales(source, row, unit);
    for (int b = 0; b < W::kUnitBlocks; ++b)
      for (int j = 0; j < 8; ++j) {
        uint32_t four;
        std::memcpy(&four, codes + 32 * b + 4 * j, 4);
        store_codes(W::kLow, W::kHigh, unit + W::planes_offset(b), row, j, four);
      }
  }
}

template <DType kType>
void pack_panel(const std::byte* rows, size_t row_bytes, int n_valid, int64_t n_in, std::byte* panel) {
  using W = WeightLayout<kType>;
  if constexpr (W::kQuantised) {
    const int64_t n_units = n_in / (32 * W::kUnitBlocks);
    for (int64_t u = 0; u < n_units; ++u)
      pack_unit<W>(rows + u * W::kSourceBytes, row_bytes, n_valid, panel + u * W::kUnitBytes);
  } else {
    std::memset(panel, 0, W::panel_bytes(n_in));
    for (int row = 0; row < n_valid; ++row, rows += row_bytes)
      for (int64_t k = 0; k < n_in; ++k)
        std::memcpy(panel + W::value_offset(k, row), rows + k * W::kValueBytes, W::kValueBytes);
  }
}

}  // namespace kvasir::cpu::matmul
