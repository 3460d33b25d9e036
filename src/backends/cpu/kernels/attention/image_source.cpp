#include "backends/cpu/kernels/attention/image_source.h"

#include <array>
#include <cstring>
#include <vector>

#include "backends/cpu/kernels/attention/headwide_tables.h"
#include "backends/cpu/kernels/attention/planar_image_body.h"
#include "backends/cpu/kernels/simd/vec_generic.h"
#include "formats/rounding.h"
#include "formats/tbq_ht.h"

namespace kvasir::cpu {
namespace {

constexpr int kTokens = graph::kPageTokens, kImageBytes = 64, kBlockBytes = 8 * kImageBytes;

template <int b>
constexpr TrellisBytes make_bytes(int bias) {
  TrellisBytes out{};
  for (int s = 0; s < formats::Trellis<b>::kStates; ++s)
    out.level[s] = uint8_t(formats::trellis_table<b>().level[s] + bias);
  return out;
}
template <int b>
constexpr TrellisBytes kBytes[2] = {make_bytes<b>(0), make_bytes<b>(128)};

// Symbols of a block of `b` lines as its 8 images.
template <int b>
void spread_symbols(const std::byte* block, uint8_t (*images)[kImageBytes]) {
  const uint8_t* lines = reinterpret_cast<const uint8_t*>(block);
  for (int z = 0; z < 8; ++z) {
    const CodeField f = code_field(b, z);
    const uint8_t* line = lines + f.line * kImageBytes;
    const uint8_t* high = lines + (f.high_line < 0 ? 0 : f.high_line) * kImageBytes;
    const int mask = (1 << f.bits) - 1, high_mask = f.high_line < 0 ? 0 : 1;
    for (int i = 0; i < kImageBytes; ++i)
      images[z][i] = uint8_t((line[i] >> f.at & mask) | (high[i] >> f.high_at & high_mask) << f.bits);
  }
}

void half_scales(const std::byte* p, int n, float* scales) {
  for (int i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, p + 2 * i, sizeof bits);
    scales[i] = f16_to_f32(bits);
  }
}

template <int b>
struct TrellisSource {
  using T = formats::Trellis<b>;
  using Images = uint8_t[8][kImageBytes];
  static constexpr int kLines = b * kImageBytes;

  static void keys(const std::byte* region, int group, int head_dim, int bias, std::byte* images,
                   float* scales, const formats::TcqTable*) {
    const int n_blocks = head_dim / 16;
    const std::byte* lines = region + size_t(group) * size_t(n_blocks) * kLines;
    const uint8_t* table = trellis_bytes(b, bias != 0).level;
    uint16_t state[32] = {};
    Images symbols;
    spread_symbols<b>(lines + (n_blocks - 1) * kLines, symbols);
    for (int z = 0; z < 8 && !mutated(Mutation::kSeam); ++z)
      step(symbols[z], state + z % 2 * 16, table, nullptr);
    for (int i = 0; i < n_blocks; ++i) {
      spread_symbols<b>(lines + i * kLines, symbols);
      for (int z = 0; z < 8; ++z)
        step(symbols[z], state + z % 2 * 16, table,
             reinterpret_cast<uint8_t*>(images) + i * kBlockBytes + z * kImageBytes);
    }
    half_scales(region + head_wide_scales(b, head_dim) + group * 64, 32, scales);
  }

  static uint8_t level(const uint8_t* table, uint32_t state) {
    return mutated(Mutation::kTrellisEntry) && state == 37 ? uint8_t(table[state] + 3) : table[state];
  }

  // Four dimensions of 16 keys.
  static void step(const uint8_t* symbols, uint16_t* states, const uint8_t* table, uint8_t* out) {
    for (int key = 0; key < 16; ++key) {
      uint32_t s = states[key];
      for (int j = 0; j < 4; ++j) {
        s = (s << b | symbols[key * 4 + j]) & (T::kStates - 1);
        if (out) out[key * 4 + j] = level(table, s);
      }
      states[key] = uint16_t(s);
    }
  }

  static void value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable*) {
    half_scales(region + head_wide_scales(b, head_dim), kTokens, scales);
  }

  static void values(const std::byte* region, int head_dim, int d, const float*, std::byte* images,
                     const formats::TcqTable*) {
    const uint8_t* table = trellis_bytes(b, false).level;
    const int before = (d + head_dim - 32) % head_dim / 32 * 4 + 1;  // the block of the 16 dimensions before
    for (int half = 0; half < 2; ++half) {
      uint16_t state[32] = {};
      Images symbols;
      spread_symbols<b>(region + size_t(before + half * 2) * kLines, symbols);
      run(symbols, 12, state, table, nullptr);
      for (int block = half * 2; block < half * 2 + 2; ++block) {
        spread_symbols<b>(region + size_t(d / 32 * 4 + block) * kLines, symbols);
        run(symbols, 0, state, table, reinterpret_cast<uint8_t*>(images) + block * kBlockBytes);
      }
    }
  }

  // Dimensions `from` .. 15 of 32 values.
  static void run(const Images& symbols, int from, uint16_t* states, const uint8_t* table, uint8_t* out) {
    for (int t = 0; t < 32; ++t) {
      uint32_t s = states[t];
      for (int d = from; d < 16; ++d) {
        s = (s << b | symbols[t / 4][d * 4 + t % 4]) & (T::kStates - 1);
        if (out) out[t / 4 * kImageBytes + d * 4 + t % 4] = level(table, s);
      }
      states[t] = uint16_t(s);
    }
  }
};

// tbq3_tcq: its symbols lie as those of tbq3_ht, but each block of 128 starts from two symbols of its own.
struct TcqSource {
  using Images = uint8_t[8][kImageBytes];
  static constexpr int kLines = 3 * kImageBytes;

  static int before(const std::byte* region, int head_dim, int block, int token) {
    return std::to_integer<int>(region[tcq_block(head_dim, block) + kTcqBefore + size_t(token)]);
  }
  // The state of trellis.h that two symbols leave.
  static uint16_t start(int before) { return uint16_t((before & 7) << 3 | (before >> 3 & 7)); }

  static void keys(const std::byte* region, int group, int head_dim, int bias, std::byte* images,
                   float* scales, const formats::TcqTable* given) {
    const formats::TcqTable& table = tcq_table(given);
    const TcqShares shares(region, head_dim, group * 32, 32);
    for (int t = 0; t < 32; ++t) scales[t] = shares.top[t] * table.step;
    const int n_blocks = head_dim / 16;
    const std::byte* lines = region + size_t(group) * size_t(n_blocks) * kLines;
    uint16_t state[32];
    for (int i = 0; i < n_blocks; ++i) {
      for (int t = 0; i % 8 == 0 && t < 32; ++t)
        state[t] = start(before(region, head_dim, i / 8, group * 32 + t));
      Images symbols;
      spread_symbols<3>(lines + i * kLines, symbols);
      for (int z = 0; z < 8; ++z)
        for (int j = 0; j < kImageBytes; ++j) {
          const int t = z % 2 * 16 + j / 4;
          state[t] = uint16_t((state[t] << 3 | symbols[z][j]) & 511);
          images[i * kBlockBytes + z * kImageBytes + j] =
              std::byte(tcq_byte(table.rounded[state[t]], shares.share[i / 8][t]) + bias);
        }
    }
  }

  static void value_scales(const std::byte* region, int head_dim, float* scales,
                           const formats::TcqTable* given) {
    const TcqShares shares(region, head_dim, 0, kTokens);
    for (int t = 0; t < kTokens; ++t) scales[t] = shares.top[t] * tcq_table(given).step;
  }

  static void values(const std::byte* region, int head_dim, int d, const float*, std::byte* images,
                     const formats::TcqTable* given) {
    const formats::TcqTable& table = tcq_table(given);
    const TcqShares shares(region, head_dim, 0, kTokens);
    for (int half = 0; half < 2; ++half) {
      uint16_t state[32];
      if (d % 128 == 0) {
        for (int t = 0; t < 32; ++t) state[t] = start(before(region, head_dim, d / 128, half * 32 + t));
      } else {  // the block of the 16 dimensions before
        Images symbols;
        spread_symbols<3>(region + size_t(d / 32 * 4 - 3 + half * 2) * kLines, symbols);
        for (int t = 0; t < 32; ++t)
          state[t] = uint16_t(symbols[t / 4][14 * 4 + t % 4] << 3 | symbols[t / 4][15 * 4 + t % 4]);
      }
      for (int block = half * 2; block < half * 2 + 2; ++block) {
        Images symbols;
        spread_symbols<3>(region + size_t(d / 32 * 4 + block) * kLines, symbols);
        for (int t = 0; t < 32; ++t)
          for (int i = 0; i < 16; ++i) {
            const int at = i * 4 + t % 4;
            state[t] = uint16_t((state[t] << 3 | symbols[t / 4][at]) & 511);
            images[block * kBlockBytes + t / 4 * kImageBytes + at] =
                std::byte(tcq_byte(table.rounded[state[t]], shares.share[d / 128][half * 32 + t]));
          }
      }
    }
  }
};

template <int b>
constexpr ImageSource trellis_source(DType type) {
  using S = TrellisSource<b>;
  return {type, 1, b, nullptr, S::keys, S::value_scales, S::values};
}
constexpr ImageSource kSources[] = {
    trellis_source<2>(DType::tbq2_ht),
    trellis_source<3>(DType::tbq3_ht),
    trellis_source<4>(DType::tbq4_ht),
    PlanarImages<generic::Vec, DType::tbq3_0>::kSource,
    PlanarImages<generic::Vec, DType::tbq4_0>::kSource,
    PlanarImages<generic::Vec, DType::q4_polar>::kSource,
    {DType::tbq3_tcq, 1, 3, nullptr, TcqSource::keys, TcqSource::value_scales, TcqSource::values},
    PlanarImages<generic::Vec, DType::qjl1_256>::kSource,
};

}  // namespace

TcqShares::TcqShares(const std::byte* region, int head_dim, int first, int n) {
  const int n_blocks = head_dim / 128;
  float scales[4][64];
  for (int b = 0; b < n_blocks; ++b)
    half_scales(region + tcq_block(head_dim, b) + size_t(first) * 2, n, scales[b]);
  for (int t = 0; t < n; ++t) {
    top[t] = scales[0][t];
    for (int b = 1; b < n_blocks; ++b) top[t] = scales[b][t] > top[t] ? scales[b][t] : top[t];
  }
  for (int b = 0; b < n_blocks; ++b)
    for (int t = 0; t < n; ++t) {
      const float of_top = top[t] > 0 ? scales[b][t] / top[t] : 1.0f;
      share[b][t] = int16_t(formats::nearest_int_in(of_top * 32768.0f, 0, 32767));
    }
}

const ImageSource* image_source(DType type) {
  for (const ImageSource& source : kSources)
    if (source.type == type) return &source;
  return nullptr;
}

const int16_t* sketch_words() {
  static const std::vector<int16_t> words = [] {
    constexpr int kWidth = formats::kSketch;
    std::vector<int16_t> out(size_t(128) * kWidth);
    for (int i = 0; i < 128; ++i)
      for (int j = 0; j < kWidth; ++j) {
        const float exact = formats::qjl_projection()[i * kWidth + j] * float(kSketchUnit);
        out[size_t(i / 2 * 2 * kWidth + j * 2 + i % 2)] =
            int16_t(formats::nearest_int_in(exact, -32767, 32767));
      }
    return out;
  }();
  return words.data();
}

const TrellisBytes& trellis_bytes(int bits, bool biased) {
  return bits == 2 ? kBytes<2>[biased] : bits == 3 ? kBytes<3>[biased] : kBytes<4>[biased];
}

}  // namespace kvasir::cpu
