// Regions of a page (forms.h) to rows in wire form (the bytes of formats::Format::encode) and back, on the
// host.
#pragma once
#include <cstring>

#include "backends/cuda/kernels/kv_forms/forms.h"

namespace kvasir::cuda {

// Where the parts of a block lie in a wire row.
struct WireBlock {
  int values, bytes, scale, high, codes, extra;
  constexpr WireBlock(KvForm form, int d)
      : values(scale_block(form) == 0 ? d : scale_block(form)),
        bytes(0),
        scale(0),
        high(2),
        codes(2),
        extra(0) {
    const RegionPlanes planes(form, d);
    bytes = (planes.codes + planes.high + planes.scales + planes.extra) * values / d;
    if (form == KvForm::kQ5_0) codes = 6;
    if (form == KvForm::kQjl1_256 || head_wide(form)) codes = 0, scale = bytes - 2;
    if (form == KvForm::kQ4Polar) extra = bytes - 16;
  }
};
// Codes j and j + 16 share byte j, where planes have codes 2 j and 2 j + 1.
constexpr bool halves_apart(KvForm form) {
  return form == KvForm::kQ5_0 || form == KvForm::kQ4_0 || form == KvForm::kTbq4_0;
}

namespace wire {

inline int nibble(const uint8_t* p, int i) { return p[i / 2] >> (i % 2 * 4) & 15; }
// Block of 32 codes between both orders.
inline void halves_to_order(const uint8_t* from, uint8_t* to) {
  for (int j = 0; j < 16; ++j) {
    const int a = 2 * j, b = 2 * j + 1;
    const int low = from[a % 16] >> (a / 16 * 4) & 15, high = from[b % 16] >> (b / 16 * 4) & 15;
    to[j] = uint8_t(low | high << 4);
  }
}
inline void order_to_halves(const uint8_t* from, uint8_t* to) {
  for (int j = 0; j < 16; ++j) to[j] = uint8_t(nibble(from, j) | nibble(from, j + 16) << 4);
}

}  // namespace wire

// Of each piece its places in both, whichever way it goes.
inline void move_rows(KvForm form, int d, bool to_wire, uint8_t* region, uint8_t* rows) {
  const RegionPlanes planes(form, d);
  const WireBlock block(form, d);
  const auto move = [&](uint8_t* at, uint8_t* wire, int bytes) {
    to_wire ? std::memcpy(wire, at, size_t(bytes)) : std::memcpy(at, wire, size_t(bytes));
  };
  if (!open_page(form) || form == KvForm::kTbq3Tcq) return move(region, rows, int(planes.bytes()));
  const int n = d / block.values, codes = planes.codes / n;
  for (int row = 0; row < kRegionRows; ++row)
    for (int b = 0; b < n; ++b, rows += block.bytes) {
      uint8_t* at = region + row * planes.codes + b * codes;
      if (!halves_apart(form))
        move(at, rows + block.codes, codes);
      else if (to_wire)
        wire::order_to_halves(at, rows + block.codes);
      else
        wire::halves_to_order(rows + block.codes, at);
      move(region + planes.scales_at() + row * planes.scales + 2 * b, rows + block.scale, 2);
      if (planes.high > 0) move(region + planes.high_at() + row * planes.high + 4 * b, rows + block.high, 4);
      if (planes.extra > 0)
        move(region + planes.extra_at() + row * planes.extra + 16 * b, rows + block.extra, 16);
    }
}

inline void region_to_wire(KvForm form, int d, const void* region, void* rows) {
  move_rows(form, d, true, static_cast<uint8_t*>(const_cast<void*>(region)), static_cast<uint8_t*>(rows));
}
inline void wire_to_region(KvForm form, int d, const void* rows, void* region) {
  move_rows(form, d, false, static_cast<uint8_t*>(region), static_cast<uint8_t*>(const_cast<void*>(rows)));
}

}  // namespace kvasir::cuda
