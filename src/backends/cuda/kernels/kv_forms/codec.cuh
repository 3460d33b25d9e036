// Rows of f16 in a type's basis to their place in a region, by a warp: the bytes of the scalar codecs
// (formats/*.h), whose operations and orders these are. Compile without fused multiply-add.
#pragma once
#include "backends/cuda/kernels/kv_forms/forms.h"
#include "backends/cuda/kernels/kv_forms/trellis.cuh"
#include "formats/qjl1_256.h"

namespace kvasir::cuda {

// From here on f16 rounds a scale to infinity: such a row has no faithful code.
inline constexpr float kScaleOverflow = 65520.0f;

// Where row `token` goes. With `codes` null nothing is stored: a question whether the row fits.
struct RowPlace {
  uint8_t* codes = nullptr;
  uint8_t* high = nullptr;
  uint16_t* scales = nullptr;
  uint8_t* extra = nullptr;
};
KVASIR_CODEC RowPlace place_row(KvForm form, int d, int token, uint8_t* region) {
  const RegionPlanes planes(form, d);
  return {region + int64_t(token) * planes.codes, region + planes.high_at() + token * planes.high,
          reinterpret_cast<uint16_t*>(region + planes.scales_at() + token * planes.scales),
          region + planes.extra_at() + token * planes.extra};
}

// As formats::tame does of f16 values: no negative zero.
KVASIR_CODEC float row_value(const uint16_t* x, int i) { return half_value(x[i]) + 0.0f; }
KVASIR_CODEC uint16_t scale_half(float v) { return nearest_half(held(v, -65504.0f, 65504.0f)); }

// scratch codes -> `bits` bits each, 8 codes a lane at a time. Groups of `group` codes whose bit is set in
// `zeros` are cleared.
template <int bits>
KVASIR_CODEC void pack_codes(const Warp& warp, const uint8_t* code, int n, int group, uint32_t zeros,
                             uint8_t* to) {
  warp.sync();
  warp.each([&](int lane) {
    for (int g = lane; g < n / 8; g += 32) {
      uint32_t packed = 0;
      KVASIR_UNROLL
      for (int j = 0; j < 8; ++j) packed |= uint32_t(code[8 * g + j]) << (bits * j);
      if (zeros >> (8 * g / group) & 1u) packed = 0;
      KVASIR_UNROLL
      for (int j = 0; j < bits; ++j) to[g * bits + j] = uint8_t(packed >> (8 * j));
    }
  });
  warp.sync();
}

KVASIR_CODEC void put_scale(const Warp& warp, uint16_t* to, uint16_t scale) {
  warp.each([&](int lane) {
    if (lane == 0) *to = scale;
  });
}

// q8_0 (8 bits), q5_0, q4_0: blocks of 32 in steps of the scale.
template <int bits>
KVASIR_CODEC void encode_steps(const Warp& warp, const uint16_t* x, int d, const RowPlace& to) {
  constexpr int kHalf = 1 << (bits - 1), kLow = bits == 8 ? -127 : -kHalf, kHigh = kHalf - 1;
  for (int b = 0; b < d / 32; ++b) {
    PerLane<float> v;
    PerLane<uint32_t> magnitude;
    PerLane<bool> top;
    warp.each([&](int lane) {
      v[lane] = row_value(x, 32 * b + lane);
      magnitude[lane] = float_bits(v[lane]) & 0x7fffffffu;
    });
    const uint32_t most = warp.largest(magnitude);
    warp.each([&](int lane) { top[lane] = magnitude[lane] == most; });
    const float largest = bits == 8 ? bits_to_float(most) : warp.of(v, first_bit(warp.ballot(top)));
    const uint16_t scale = scale_half(bits == 8 ? largest / 127.0f : largest / float(-kHalf));
    const float s = half_value(scale), inverse = s != 0.0f ? 1.0f / s : 0.0f;
    PerLane<int> code;
    PerLane<bool> high;
    warp.each([&](int lane) {
      code[lane] = nearest_int(held(v[lane] * inverse, float(kLow), float(kHigh)));
      if constexpr (bits == 8) to.codes[32 * b + lane] = uint8_t(code[lane]);
      code[lane] += kHalf;
      high[lane] = code[lane] >> 4 & 1;
    });
    if constexpr (bits < 8) {
      const uint32_t word = warp.ballot(high);
      PerLane<int> other;
#ifdef __CUDACC__
      other.value = __shfl_down_sync(~0u, code.value, 1);
#else
      for (int l = 0; l < 31; ++l) other[l] = code[l + 1];
#endif
      warp.each([&](int lane) {
        if (lane % 2 == 0) to.codes[16 * b + lane / 2] = uint8_t((code[lane] & 15) | (other[lane] & 15) << 4);
        if (bits == 5 && lane < 4) to.high[4 * b + lane] = uint8_t(word >> (8 * lane));
      });
    }
    put_scale(warp, to.scales + b, scale);
  }
}

// A code book's levels, one a lane: lanes that want different ones need not wait for each other.
struct LevelLanes {
#ifdef __CUDACC__
  float own;
  __device__ __forceinline__ LevelLanes(const Warp& warp, const Book& book)
      : own(book.level[warp.lane % 16]) {}
  __device__ __forceinline__ float operator[](int code) const { return __shfl_sync(~0u, own, code); }
#else
  const Book& book;
  LevelLanes(const Warp&, const Book& from) : book(from) {}
  float operator[](int code) const { return book.level[code]; }
#endif
};

// Groups of a code book and a least-squares scale: tbq_h (the head is a group), tbq_0 (32 values).
template <int bits>
KVASIR_CODEC bool encode_book(const Warp& warp, const uint16_t* x, int d, int group, const Book& book,
                              uint8_t* code, const RowPlace& to) {
  const LevelLanes level_of(warp, book);
  bool fits = true;
  uint32_t zeros = 0;
  KVASIR_UNROLL_4  // groups are independent chains of sums
      for (int g = 0; g < d / group; ++g) {
    const int first = g * group;
    PerLane<float> sum, products, levels;
    warp.each([&](int lane) {
      sum[lane] = 0;
      for (int i = lane; i < group; i += 32) {
        const float v = row_value(x, first + i);
        sum[lane] += v * v;
      }
    });
    const float mean = warp.fold(sum) * (1.0f / float(group));  // exact: a power of two
    const float inverse = mean == 0 ? 0.0f : 1.0f / root(mean);
    warp.each([&](int lane) {
      products[lane] = levels[lane] = 0;
      for (int i = lane; i < group; i += 32) {
        const float v = row_value(x, first + i), u = v * inverse;
        int c = 0;
        KVASIR_UNROLL
        for (int m = 0; m + 1 < (1 << bits); ++m) c += book.midpoint[m] < u;
        code[first + i] = uint8_t(c);
        const float level = level_of[c];
        products[lane] += v * level;
        levels[lane] += level * level;
      }
    });
    const float exact = mean == 0 ? 0.0f : warp.fold(products) / warp.fold(levels);
    fits = fits && exact < kScaleOverflow;
    if (!to.codes) continue;
    const uint16_t scale = scale_half(exact);
    zeros |= uint32_t(scale == 0) << g;
    put_scale(warp, to.scales + g, scale);
  }
  if (to.codes) pack_codes<bits>(warp, code, d, group, zeros, to.codes);
  return fits;
}

// Sums in double precision, value after value, of each block by a lane of its own.
KVASIR_CODEC bool encode_polar(const Warp& warp, const uint16_t* x, int d, uint8_t* code,
                               const RowPlace& to) {
  const Book& book = kCodecTables.polar;
  const LevelLanes level_of(warp, book);
  PerLane<float> norm;
  PerLane<bool> side;
  warp.each([&](int lane) {
    double squares = 0;
    for (int i = 0; lane < d / 128 && i < 128; ++i) {
      const double v = double(row_value(x, 128 * lane + i));
      squares += v * v;
    }
    norm[lane] = float(root(squares));
  });
  bool fits = true;
  for (int b = 0; b < d / 128; ++b) {
    const float of_block = warp.of(norm, b),
                to_unit = of_block > 1e-10f ? formats::kRoot128 / of_block : 0.0f;
    PerLane<float> products, levels;
    warp.each([&](int lane) {
      products[lane] = levels[lane] = 0;
      for (int i = 128 * b + lane; i < 128 * b + 128; i += 32) {
        const float r = row_value(x, i), v = r * to_unit;
        int c = 0;
        KVASIR_UNROLL
        for (int m = 0; m < 15; ++m) c += book.midpoint[m] < v;
        code[i] = uint8_t(c);
        const float level = level_of[c];
        products[lane] += r * level;
        levels[lane] += level * level;
      }
    });
    const float exact = formats::kRoot128 * warp.fold(products) / warp.fold(levels);
    const uint16_t scale = scale_half(exact);
    const bool zero = of_block <= 1e-10f || scale == 0;
    fits = fits && (zero || exact < kScaleOverflow);
    if (!to.codes) continue;
    pack_codes<4>(warp, code + 128 * b, 128, 128, zero, to.codes + 64 * b);
    put_scale(warp, to.scales + b, zero ? uint16_t(0) : scale);
    warp.each([&](int lane) {
      if (lane == 0) {
        double sum = 0;
        for (int i = 0; i < 128; ++i) {
          const float v = row_value(x, 128 * b + i) * to_unit;
          const float off = v - book.level[code[128 * b + i]];
          sum += double(off) * (kCodecTables.polar_signs[i / 32] >> (i % 32) & 1 ? 1 : -1);
        }
        side[lane] = sum >= 0;
      }
      if (lane < 16) to.extra[16 * b + lane] = uint8_t(lane == 0 && !zero && side[lane]);
    });
  }
  return fits;
}

// Signs of 256 projections of 128 values each, every sum in the order of the values.
KVASIR_CODEC void encode_qjl(const Warp& warp, const uint16_t* x, int d, const float* projection,
                             const RowPlace& to) {
  for (int b = 0; b < d / 128; ++b) {
    for (int word = 0; word < 8; ++word) {
      PerLane<bool> positive;
      warp.each([&](int lane) {
        float sum = 0;
        const float* column = projection + 32 * word + lane;
        KVASIR_UNROLL
        for (int i = 0; i < 128; ++i) sum += row_value(x, 128 * b + i) * column[i * formats::kSketch];
        positive[lane] = sum > 0;
      });
      const uint32_t bits = warp.ballot(positive);
      warp.each([&](int lane) {
        if (lane < 4) to.codes[32 * b + 4 * word + lane] = uint8_t(bits >> (8 * lane));
      });
    }
    float squares = 0;
    for (int i = 0; i < 128; ++i) {
      const float v = row_value(x, 128 * b + i);
      squares += v * v;
    }
    const uint32_t norm = float_bits(root(squares));
    put_scale(warp, to.scales + b, uint16_t((norm + 0x7fffu + (norm >> 16 & 1u)) >> 16));
  }
}

// Sum of squares of n values from `first`, 32 accumulators.
KVASIR_CODEC float squares_of(const Warp& warp, const uint16_t* x, int first, int n) {
  PerLane<float> sum;
  warp.each([&](int lane) {
    sum[lane] = 0;
    for (int i = lane; i < n; i += 32) {
      const float v = row_value(x, first + i);
      sum[lane] += v * v;
    }
  });
  return warp.fold(sum);
}

template <int D>
KVASIR_CODEC void set_targets(const Warp& warp, const uint16_t* x, int first, int n, float to_unit,
                              TrellisScratch<D>& scratch) {
  warp.each([&](int lane) {
    for (int i = lane; i < n; i += 32)
      scratch.target[i] = float(nearest_int(held(row_value(x, first + i) * to_unit, -127.0f, 127.0f)));
  });
  warp.sync();
}

// trellis.h's state of value t of a ring of symbols.
template <int b>
KVASIR_CODEC int ring_state(const uint8_t* symbol, int t, int d) {
  uint32_t s = 0;
  KVASIR_UNROLL
  for (int k = b == 2 ? 3 : 2; k >= 0; --k) s = s << b | symbol[(t - k + d) % d];
  return int(s & (formats::Trellis<b>::kStates - 1));
}

template <int b, int D>
KVASIR_CODEC void encode_trellis(const Warp& warp, const uint16_t* x, int d, TrellisScratch<D>& scratch,
                                 const RowPlace& to) {
  const float mean = squares_of(warp, x, 0, d) * (1.0f / float(d));
  uint16_t scale = 0;
  if (mean != 0) {
    set_targets(warp, x, 0, d, formats::kTrellisUnit / root(mean), scratch);
    WarpTrellis<b>::search(warp, scratch, d);
    const int8_t* table = state_levels<b>();
    PerLane<float> products, levels;
    warp.each([&](int lane) {
      products[lane] = levels[lane] = 0;
      for (int i = lane; i < d; i += 32) {
        const float level = float(table[ring_state<b>(scratch.code, i, d)]);
        products[lane] += row_value(x, i) * level;
        levels[lane] += level * level;
      }
    });
    const float energy = warp.fold(levels), exact = energy > 0 ? warp.fold(products) / energy : 0.0f;
    scale = scale_half(exact > 0 ? exact : 0.0f);
  }
  pack_codes<b>(warp, scratch.code, d, d, scale == 0, to.codes);
  put_scale(warp, to.scales, scale);
}

// One wire block of tbq3_tcq: f16 d, the stream of six bits and 128 symbols, a zero byte.
template <int D>
KVASIR_CODEC void put_tcq(const Warp& warp, const TrellisScratch<D>& scratch, int before, uint16_t scale,
                          uint8_t* block) {
  const auto bits_at = [&](int at) -> int {  // eight bits of the stream from bit `at` on
    int bits = at < 6 ? before >> at : 0;
    for (int t = at < 6 ? 0 : (at - 6) / 3; t < 128 && 6 + 3 * t < at + 8; ++t) {
      const int shift = 6 + 3 * t - at;
      bits |= shift >= 0 ? scratch.code[t] << shift : scratch.code[t] >> -shift;
    }
    return bits & 255;
  };
  warp.each([&](int lane) {
    for (int i = lane; i < kTcqBlockBytes; i += 32) {
      int byte = i < 2 ? scale >> (8 * i) & 255 : i < kTcqBlockBytes - 1 ? bits_at(8 * (i - 2)) : 0;
      block[i] = scale == 0 ? uint8_t(0) : uint8_t(byte);
    }
  });
  warp.sync();
}

template <int D>
KVASIR_CODEC bool encode_tcq(const Warp& warp, const uint16_t* x, int d, const KvTables& tables,
                             TrellisScratch<D>& scratch, const RowPlace& to) {
  bool fits = true;
  for (int b = 0; b < d / 128; ++b) {
    const float squares = squares_of(warp, x, 128 * b, 128);
    uint16_t scale = 0;
    int before = 0;
    if (squares != 0) {
      set_targets(warp, x, 128 * b, 128, 1.0f / tables.tcq_step / root(squares), scratch);
      const int start = WarpTrellis<3>::search_open(warp, scratch, tables.tcq_rounded, 128);
      before = (start & 7) << 3 | (start >> 3 & 7);  // the mirrored state's upper two symbols
      PerLane<float> products, levels;
      warp.each([&](int lane) {
        products[lane] = levels[lane] = 0;
        for (int i = lane; i < 128; i += 32) {
          const int o1 = i > 0 ? scratch.code[i - 1] : before >> 3, o2 = i > 1   ? scratch.code[i - 2]
                                                                         : i > 0 ? before >> 3
                                                                                 : before & 7;
          const float level = tables.tcq_level[o2 | o1 << 3 | scratch.code[i] << 6];
          products[lane] += row_value(x, 128 * b + i) * level;
          levels[lane] += level * level;
        }
      });
      const float energy = warp.fold(levels), exact = energy > 0 ? warp.fold(products) / energy : 0.0f;
      fits = fits && exact < kScaleOverflow;
      scale = scale_half(exact > 0 ? exact : 0.0f);
    }
    put_tcq(warp, scratch, before, scale, to.codes + b * kTcqBlockBytes);
  }
  return fits;
}

// Forms that need no search. `code`: d bytes of shared memory. False when a scale would overflow f16.
KVASIR_CODEC bool encode_quick(KvForm form, const Warp& warp, const uint16_t* x, int d, uint8_t* code,
                               const RowPlace& to) {
  const int size = d <= 64 ? 0 : d <= 128 ? 1 : d <= 256 ? 2 : 3;
  switch (form) {
    case KvForm::kQ8_0:
      if (to.codes) encode_steps<8>(warp, x, d, to);
      return true;
    case KvForm::kQ5_0:
      if (to.codes) encode_steps<5>(warp, x, d, to);
      return true;
    case KvForm::kQ4_0:
      if (to.codes) encode_steps<4>(warp, x, d, to);
      return true;
    case KvForm::kTbq3_0:
      return encode_book<3>(warp, x, d, 32, kCodecTables.tbq3, code, to);
    case KvForm::kTbq4_0:
      return encode_book<4>(warp, x, d, 32, kCodecTables.tbq4, code, to);
    case KvForm::kTbq2H:
      return encode_book<2>(warp, x, d, d, kCodecTables.head[0][size], code, to);
    case KvForm::kTbq3H:
      return encode_book<3>(warp, x, d, d, kCodecTables.head[1][size], code, to);
    case KvForm::kTbq4H:
      return encode_book<4>(warp, x, d, d, kCodecTables.head[2][size], code, to);
    case KvForm::kQ4Polar:
      return encode_polar(warp, x, d, code, to);
    default:
      return true;
  }
}

// Every form that is encoded.
template <int D>
KVASIR_CODEC bool encode_row(KvForm form, const Warp& warp, const uint16_t* x, int d, const KvTables& tables,
                             TrellisScratch<D>& scratch, const RowPlace& to) {
  switch (form) {
    case KvForm::kQjl1_256:
      encode_qjl(warp, x, d, tables.projection, to);
      return true;
    case KvForm::kTbq3Tcq:
      return encode_tcq(warp, x, d, tables, scratch, to);
    case KvForm::kTbq2Ht:
      encode_trellis<2>(warp, x, d, scratch, to);
      return true;
    case KvForm::kTbq3Ht:
      encode_trellis<3>(warp, x, d, scratch, to);
      return true;
    case KvForm::kTbq4Ht:
      encode_trellis<4>(warp, x, d, scratch, to);
      return true;
    default:
      return encode_quick(form, warp, x, d, scratch.code, to);
  }
}

}  // namespace kvasir::cuda
