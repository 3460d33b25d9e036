// Types that are expanded before they are read: the keys of a group, or a slice of a page of values, become
// images of int8 levels as the head-wide kernels read them (headwide_body.h; places: kv_page.h), with one f32
// scale a token. A token's value is scale * byte:
//   tbq2_ht tbq3_ht tbq4_ht   the table's own int8 level and the row's f16 scale: exact
//   blocks of a scale d_b and levels l (tbq3_0 tbq4_0 q4_polar, and qjl1_256 as its 256 signs):
//     scale = max_b d_b * L / 127, L the largest |l|; byte = (127 l / L) * (d_b / max_b d_b), rounded twice
//     (planar_image_body.h): off by at most 0.52, so a value is off by at most 0.52 scale, 1 / 244 of the
//     row's largest possible value
//   tbq3_tcq, blocks of a scale d_b and levels of a table (formats/tcq_table.h): scale = max_b d_b * step,
//     share_b = min(32767, nearest(32768 d_b / max_b d_b)), byte = floor((rounded level * share_b + 16384) /
//     32768): the rounded level itself in a head of 128, else off by 1/2 + 127 / 65536 at most
// The sketch P^T q of a query (qjl1_256) is a sum of whole numbers too, each block of 128 values apart:
//   s[j] = t / (kSketchCodes kSketchUnit) sum_i nearest(kSketchCodes q[i] / t) nearest(kSketchUnit P[i][j]),
//   t = max |q| of the block
// Both roundings add noise of t sqrt(128 / 12) / kSketchCodes + |q| / (kSketchUnit sqrt(12)), root mean
// square: .03 % of a sketch value's size for Gaussian q, beside .7 % of rounding the sketch itself to 8 bits.
// The bytes are the same on every ISA: the code of this file is compiled once, and what an ISA replaces moves
// whole numbers only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/kv_page.h"
#include "formats/tcq_table.h"

namespace kvasir::cpu {

// Levels of keys are stored plus `bias` (mod 256), as Vec::dot8 wants them. `table`: of tbq3_tcq, null for
// Kvasir's own; other types take no notice.
struct ImageSource {
  DType type;
  int widen;  // image dimensions a value of a key: 2 for qjl1_256
  int bits;   // of an image's dimension in a page
  // Sketches of n query rows, of row i into out[i * kMaxImageDims ..] [head_dim * widen]; null where the
  // query is taken as it is. n: at most the rows of a tile.
  void (*query)(const float* const* q, int n, int head_dim, float* out);
  // Keys 32 * group .. of a region: images [head_dim * widen / 16][8][64] and scales[32]. On the way the
  // first half of a group's lines is asked for in `next`.
  void (*keys)(const std::byte* region, int group, int head_dim, int bias, std::byte* images, float* scales,
               const formats::TcqTable* table, const Streams& next);
  // Scales of the 64 values of a region; a type may keep more of each kChunk floats on.
  void (*value_scales)(const std::byte* region, int head_dim, float* scales, const formats::TcqTable* table);
  // Dimensions d .. d + 31 of a page of values, given what value_scales made of it: images [4][8][64]. Of a
  // trellis type, whose images have dimension d at trellis_step(d) (kv_page.h): 64 of such places from d on,
  // images [2][4][8][64].
  void (*values)(const std::byte* region, int head_dim, int d, const float* scales, std::byte* images,
                 const formats::TcqTable* table);
  bool striped = false;  // a trellis type
  int values_at_once() const { return striped ? 64 : 32; }
};

// The most dimensions of an image row.
inline constexpr int kMaxImageDims = 2 * kMaxHeadDim;
// 32 bits hold any sum: kSketchCodes times the largest sum_i |P[i][j]| kSketchUnit is below 2^31 (a test).
inline constexpr int kSketchCodes = 8191, kSketchUnit = 2048;
// nearest(kSketchUnit P[i][j]) as [i / 2][j][i % 2].
const int16_t* sketch_words();

// nullptr for types that are not expanded. Keys of qjl1_256 only: its value functions are null.
const ImageSource* image_source(DType type);

// Symbols of consecutive steps share a byte: `kSteps` of them, step i at bits b * i. The state of step i is
// then that byte with the later steps' symbols from the byte before; what is left of the state (3 bits: the
// lower two bits of the symbol before those) lies above, and a last bit turns the level over (2 bits: none
// does).
template <int b>
struct SharedByte {
  static constexpr int kSteps = b == 2 ? 4 : 2;
  static constexpr int index(int i, int state) {
    constexpr int kMask = (1 << b) - 1;
    if (b == 3) return (state & 0xc0) | (state & 7) << (3 * i) | (state >> 3 & 7) << (3 - 3 * i);
    int out = 0;
    for (int k = 0; k < kSteps; ++k) out |= (state >> (b * k) & kMask) << (b * ((i - k + kSteps) % kSteps));
    return out;
  }
};
// Biased levels of a trellis type, by SharedByte::index of a state below 256.
struct TrellisBytes {
  alignas(64) uint8_t level[4][256];
};
const TrellisBytes& trellis_bytes(int bits, bool biased);

inline const formats::TcqTable& tcq_table(const formats::TcqTable* table) {
  return table ? *table : formats::own_tcq_table();
}
// Tokens first .. first + n - 1 of a region of tbq3_tcq: the largest scale of each row, and the share of each
// block.
struct TcqShares {
  alignas(64) float top[64];
  alignas(64) int16_t share[4][64];  // by block and token - first
  TcqShares(const std::byte* region, int head_dim, int first, int n);
};
inline int8_t tcq_byte(int level, int share) { return int8_t((level * share + 16384) >> 15); }

}  // namespace kvasir::cpu
