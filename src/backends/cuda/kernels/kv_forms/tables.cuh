// Levels of every type with a code book, from the scalar codecs' own headers.
#pragma once
#include "backends/cuda/kernels/kv_forms/warp.cuh"
#include "formats/q4_polar.h"
#include "formats/tbq_0.h"
#include "formats/tbq_ht.h"

namespace kvasir::cuda {

struct Book {
  float level[16], midpoint[16];  // ascending
};
struct CodecTables {
  Book head[3][4];  // bits - 2; head size 64 128 256 512
  Book tbq3, tbq4, polar;
  uint32_t polar_signs[4];  // bit set: +1
};

template <int b>
constexpr void fill_head_books(CodecTables& t) {
  for (int s = 0; s < 4; ++s) {
    const auto& from = formats::kHeadCodebooks<b>[s];
    for (int i = 0; i < (1 << b); ++i) t.head[b - 2][s].level[i] = from.level[size_t(i)];
    for (int i = 0; i + 1 < (1 << b); ++i) t.head[b - 2][s].midpoint[i] = from.midpoint[size_t(i)];
  }
}

constexpr CodecTables make_codec_tables() {
  CodecTables t{};
  fill_head_books<2>(t);
  fill_head_books<3>(t);
  fill_head_books<4>(t);
  for (int i = 0; i < 8; ++i) t.tbq3.level[i] = formats::kTbq3Levels[i];
  for (int i = 0; i < 7; ++i) t.tbq3.midpoint[i] = formats::kTbq3Midpoints.between[i];
  for (int i = 0; i < 16; ++i) t.tbq4.level[i] = formats::kTbq4Levels[i];
  for (int i = 0; i < 15; ++i) t.tbq4.midpoint[i] = formats::kTbq4Midpoints.between[i];
  for (int i = 0; i < 16; ++i) t.polar.level[i] = formats::kPolarLevels[i];
  for (int i = 0; i < 15; ++i) t.polar.midpoint[i] = formats::kPolarMidpoints[i];
  for (int i = 0; i < 128; ++i)
    t.polar_signs[i / 32] |= uint32_t(formats::kPolarSigns[size_t(i)] > 0) << (i % 32);
  return t;
}

#ifdef __CUDACC__
static __constant__ CodecTables kCodecTables = make_codec_tables();
#else
inline constexpr CodecTables kCodecTables = make_codec_tables();
#endif

// A whole number of magnitude up to 127 as f16.
constexpr uint16_t half_of_int(int v) {
  const uint16_t sign = v < 0 ? 0x8000 : 0;
  int mantissa = v < 0 ? -v : v, exponent = 25;  // 2^10 is exponent 25
  if (mantissa == 0) return sign;
  for (; mantissa < 1024; mantissa *= 2) --exponent;
  return uint16_t(sign | exponent << 10 | (mantissa - 1024));
}

// Levels of the trellis types as f16, by the bits of the stream that end with a value's own symbol: four
// symbols of 2 bits, three of 3 bits, two of 4 bits and above them the lowest bit of the one before
// (trellis.h's states have their symbols in the opposite order).
struct TrellisLevels {
  uint16_t b2[256], b3[512], b4[512];
};
constexpr TrellisLevels make_trellis_levels() {
  TrellisLevels t{};
  for (int w = 0; w < 256; ++w)
    t.b2[w] = half_of_int(
        formats::kTrellisTable2.level[(w & 3) << 6 | (w >> 2 & 3) << 4 | (w >> 4 & 3) << 2 | w >> 6]);
  for (int w = 0; w < 512; ++w)
    t.b3[w] = half_of_int(formats::kTrellisTable3.level[(w & 7) << 6 | (w & 56) | w >> 6]);
  for (int w = 0; w < 512; ++w)
    t.b4[w] = half_of_int(formats::kTrellisTable4.level[(w & 256) | (w & 15) << 4 | (w >> 4 & 15)]);
  return t;
}

// Two values that follow each other, by the window that ends with the second: the symbols of both and what
// comes before the first.
template <int b>
struct TrellisPairs {
  static constexpr int kEntries = b == 2 ? 1 << 10 : b == 3 ? 1 << 12 : 1 << 13;
  uint32_t pair[kEntries];  // two f16, the first value in the low half
};
template <int b>
constexpr TrellisPairs<b> make_trellis_pairs() {
  constexpr TrellisLevels levels = make_trellis_levels();
  TrellisPairs<b> out{};
  for (uint32_t w = 0; w < uint32_t(TrellisPairs<b>::kEntries); ++w) {
    uint32_t first = 0, second = 0;
    if constexpr (b == 2) first = levels.b2[w & 255], second = levels.b2[w >> 2];
    if constexpr (b == 3) first = levels.b3[w & 511], second = levels.b3[w >> 3];
    if constexpr (b == 4)
      first = levels.b4[(w & 255) | w >> 12 << 8], second = levels.b4[(w >> 4 & 255) | (w & 1) << 8];
    out.pair[w] = first | second << 16;
  }
  return out;
}

// By trellis.h's states, as its search reads them.
template <int b>
struct StateLevels {
  int8_t level[formats::Trellis<b>::kStates];
};
template <int b>
constexpr StateLevels<b> make_state_levels() {
  StateLevels<b> out{};
  for (int s = 0; s < formats::Trellis<b>::kStates; ++s) out.level[s] = formats::trellis_table<b>().level[s];
  return out;
}

#ifdef __CUDACC__
static __device__ const TrellisLevels kTrellisLevels = make_trellis_levels();
template <int b>
static __device__ const TrellisPairs<b> kTrellisPairs = make_trellis_pairs<b>();
static __device__ const StateLevels<2> kStateLevels2 = make_state_levels<2>();
static __device__ const StateLevels<3> kStateLevels3 = make_state_levels<3>();
static __device__ const StateLevels<4> kStateLevels4 = make_state_levels<4>();
#else
inline constexpr TrellisLevels kTrellisLevels = make_trellis_levels();
inline constexpr StateLevels<2> kStateLevels2 = make_state_levels<2>();
inline constexpr StateLevels<3> kStateLevels3 = make_state_levels<3>();
inline constexpr StateLevels<4> kStateLevels4 = make_state_levels<4>();
#endif

template <int b>
KVASIR_CODEC const int8_t* state_levels() {
  if constexpr (b == 2) return kStateLevels2.level;
  if constexpr (b == 3) return kStateLevels3.level;
  if constexpr (b == 4) return kStateLevels4.level;
}

}  // namespace kvasir::cuda
