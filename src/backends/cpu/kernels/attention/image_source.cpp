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
  for (int i = 0; i < SharedByte<b>::kSteps; ++i)
    for (int s = 0; s < 256; ++s)
      out.level[i][SharedByte<b>::index(i, s)] = uint8_t(formats::trellis_table<b>().level[s] + bias);
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

  // The states of 64 rows, each byte's of its images one.
  struct States {
    uint16_t state[kImageBytes] = {};
    int bias;
    explicit States(int of_levels) : bias(of_levels) {}

    void step(const uint8_t* symbols, uint8_t* out) {
      for (int i = 0; i < kImageBytes; ++i) {
        state[i] = uint16_t((state[i] << b | symbols[i]) & (T::kStates - 1));
        if (out) out[i] = uint8_t(level(state[i]) + bias);
      }
    }
    static int level(uint32_t state) {
      return formats::trellis_table<b>().level[state] +
             (mutated(Mutation::kTrellisEntry) && state == 37 ? 3 : 0);
    }
  };

  static void keys(const std::byte* region, int group, int head_dim, int bias, std::byte* images,
                   float* scales, const formats::TcqTable*, const Streams&) {
    const int n_blocks = head_dim / 16;
    const std::byte* lines = region + size_t(group) * size_t(n_blocks) * kLines;
    for (int half = 0; half < 2; ++half) {
      States states(bias);
      Images symbols;
      uint8_t before[kImageBytes];
      spread_symbols<b>(lines + (n_blocks - 2 + half) * kLines, symbols);
      for (int z = 4; z < 8 && !mutated(Mutation::kSeam); ++z) {  // of a stripe before, of the row's end
        for (int i = 0; i < kImageBytes; ++i) before[i] = symbols[z][i % 4 ? i - 1 : i + 3];
        states.step(before, nullptr);
      }
      for (int i = 0; i < n_blocks / 2; ++i) {
        spread_symbols<b>(lines + (2 * i + half) * kLines, symbols);
        for (int z = 0; z < 8; ++z)
          states.step(symbols[z],
                      reinterpret_cast<uint8_t*>(images) + ((i * 8 + z) * 2 + half) * kImageBytes);
      }
    }
    half_scales(region + head_wide_scales(b, head_dim) + group * 64, 32, scales);
  }

  static void value_scales(const std::byte* region, int head_dim, float* scales, const formats::TcqTable*) {
    half_scales(region + head_wide_scales(b, head_dim), kTokens, scales);
  }

  static void values(const std::byte* region, int head_dim, int d, const float*, std::byte* images,
                     const formats::TcqTable*) {
    const int run = head_dim / 16, first = d / 16;
    for (int t = 0; t < kTokens; t += 4) {
      States states(0);
      Images symbols;
      const auto read = [&](int step) -> const uint8_t(&)[kImageBytes] {
        const SymbolPlace at = trellis_place(KvSide::kValue, head_dim, t, step * 16);
        spread_symbols<b>(region + size_t(at.block) * kLines, symbols);
        return symbols[at.image];
      };
      for (int i = 4; i > 0; --i) {
        const bool own = first >= i;  // else of the stripe before
        const auto& from = read(own ? first - i : run - i);
        uint8_t before[kImageBytes];
        for (int j = 0; j < kImageBytes; ++j) before[j] = from[own ? j : (j + kImageBytes - 4) % kImageBytes];
        states.step(before, nullptr);
      }
      for (int i = 0; i < 4; ++i)
        states.step(read(first + i), reinterpret_cast<uint8_t*>(images) +
                                         ((i / 2 * 4 + t / 32 * 2 + i % 2) * 8 + t % 32 / 4) * kImageBytes);
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
                   float* scales, const formats::TcqTable* given, const Streams&) {
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
  return {type, 1, b, nullptr, S::keys, S::value_scales, S::values, true};
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
