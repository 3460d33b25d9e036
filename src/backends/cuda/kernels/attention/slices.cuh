// A slice: 16 keys by 128 values of one head, as stored, in a slot of shared memory; and from there to the
// left operands of the matrix units, 16 x 16 values a product. Lane 4 g + t of a warp
//   keys:   holds values 32 t .. 32 t + 31 of keys g and g + 8; product s takes four of them, 4 s + 0..3
//   values: holds values 16 g .. 16 g + 15 of keys t, t + 8, t + 4, t + 12; product j takes 2 j and 2 j + 1
// which are whole runs of codes. Levels of codes come from a table of 256 rows of 256 bytes in which every
// lane has a place of its own, so that 32 lanes never meet in a bank: row = a byte of codes, so that one
// byte permute makes an address. So it is with the levels of trellises of 2 and 3 bits, by the eight or nine
// bits of the stream that end with a value; that of 4 bits has a table of pairs, by the window that ends with
// the second, in which lanes do meet.
#pragma once
#include "backends/cuda/kernels/attention/chunks.cuh"

namespace kvasir::cuda {

constexpr bool decode_form(KvForm form) { return chunk_form(form) || trellis(form); }
// One scale a row, apart from the codes.
__host__ __device__ constexpr bool row_scales(KvForm form) { return form >= KvForm::kTbq2H; }
__host__ __device__ constexpr bool coded(KvForm form) { return form >= KvForm::kTbq2H; }
__host__ __device__ constexpr bool is_trellis(KvForm form) { return form >= KvForm::kTbq2Ht; }

template <KvForm F>
struct Slice {
  static constexpr int kBits = code_bits(F);
  // Pieces of 16 bytes of a row; a trellis row begins with the piece in front of its codes.
  static constexpr int kBefore = is_trellis(F) ? 1 : 0, kPieces = kBits + kBefore;
  static constexpr int kStride = 16 * kPieces;
  // Behind the rows: 8 bytes of scales a key, of q5_0 16 of fifth bits.
  static constexpr int kScalesAt = kChunkKeys * kStride, kHighAt = kScalesAt + kChunkKeys * 8;
  static constexpr int kBytes = !block_scales(F)     ? kScalesAt
                                : F == KvForm::kQ5_0 ? kHighAt + kChunkKeys * 16
                                                     : kHighAt;
  // Rows that a warp copies at once.
  static constexpr int kRows = kPieces <= 2    ? 16
                               : kPieces <= 4  ? 8
                               : kPieces <= 8  ? 4
                               : kPieces <= 16 ? 2
                                               : 1;
};
// Pairs of a query's values that are a product's right operands: of wide types a term after the other.
constexpr int query_terms(KvForm form) { return wide_form(form) ? 2 : 1; }
// Bytes of a type's table, and what its address must be a multiple of.
__host__ __device__ constexpr int table_bytes(KvForm form) {
  return form == KvForm::kTbq2Ht || form == KvForm::kTbq4Ht ? 32768
         : coded(form) || book_form(form)                   ? 65536
                                                            : 0;
}

// ---- copies ----

// Where a lane's first piece lies: in the rows of a page, and in a slot.
template <int D, KvForm F, bool kValues>
__device__ __forceinline__ void lane_copy(int part, int lane, uint32_t& from, uint32_t& to) {
  using S = Slice<F>;
  constexpr int kRow = D / 8 * S::kBits, kSlice = 16 * S::kBits;
  const int r = lane / S::kPieces, p = lane % S::kPieces;
  int at = part * kSlice + (p - S::kBefore) * 16;
  if (at < 0) at += kRow;  // a trellis bites its tail
  from = uint32_t(r * kRow + at), to = uint32_t(r * S::kStride + piece_place<F, kValues>(r, p) * 16);
}
// 16 rows to the slot, from and to this lane's own places on. Rows of values outside [low, high) are zeroed:
// what no query sees cannot spread a NaN. Codes of levels have none.
template <int D, KvForm F, bool kValues>
__device__ __forceinline__ void copy_slice(uint32_t slot, uint32_t to, const uint8_t* from, int lane, int low,
                                           int high) {
  using S = Slice<F>;
  constexpr int kRow = D / 8 * S::kBits;
  if (S::kRows * S::kPieces < 32 && lane >= S::kRows * S::kPieces) return;
#pragma unroll
  for (int i = 0; i < kChunkKeys / S::kRows; ++i) {
    uint32_t at = to + i * S::kRows * S::kStride;
    // piece_place of the rows after the first ones
    if ((F == KvForm::kF16 || F == KvForm::kBf16) && kValues && i % 2) at = slot + ((at - slot) ^ 64);
    if (F == KvForm::kF32) at = slot + ((at - slot) ^ (kValues ? i % 4 * 16 : i % 2 * 64));
    const int row = lane / S::kPieces + i * S::kRows;
    const bool valid = coded(F) || !kValues || (row >= low && row < high);
    copy_to<16>(at, from + i * S::kRows * kRow, valid);
  }
}
// Of blocks: the scales of the slice, 8 bytes a key, and fifth bits.
template <int D, KvForm F, bool kValues>
__device__ __forceinline__ void copy_block_scales(uint32_t slot, const uint8_t* region, int key, int part,
                                                  int lane, int low, int high) {
  constexpr RegionPlanes kPlanes(F, D);
  if (lane >= kChunkKeys) return;
  const bool valid = !kValues || (lane >= low && lane < high);
  copy_to<8>(slot + Slice<F>::kScalesAt + lane * 8,
             region + kPlanes.scales_at() + (key + lane) * (D / 16) + part * 8, valid);
  if constexpr (F == KvForm::kQ5_0)
    copy_to<16>(slot + Slice<F>::kHighAt + lane * 16,
                region + kPlanes.high_at() + (key + lane) * (D / 8) + part * 16, valid);
}

// ---- tables ----

template <KvForm F>
__device__ __forceinline__ void fill_table(uint32_t table, int d) {
  constexpr int b = code_bits(F);
  if constexpr (is_trellis(F) && b < 4) {
    // Eight threads a row, 16 bytes each.
#pragma unroll 8
    for (int row = int(threadIdx.x) / 8; row < table_bytes(F) / 128; row += int(blockDim.x) / 8) {
      const uint32_t level = b == 2 ? kTrellisLevels.b2[row] : kTrellisLevels.b3[row];
      asm volatile(
          "st.shared.v4.u32 [%0], {%1,%1,%1,%1};" ::"r"(table + row * 128 + int(threadIdx.x) % 8 * 16),
          "r"(level)
          : "memory");
    }
  } else if constexpr (is_trellis(F)) {
    const uint8_t* from = reinterpret_cast<const uint8_t*>(kTrellisPairs<b>.pair);
    for (int i = int(threadIdx.x) * 16; i < table_bytes(F); i += int(blockDim.x) * 16) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + i);
      asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(table + i), "r"(v.x), "r"(v.y), "r"(v.z),
                   "r"(v.w)
                   : "memory");
    }
  } else if constexpr (coded(F) || book_form(F)) {
    const float* level = F == KvForm::kTbq4_0   ? kCodecTables.tbq4.level
                         : F == KvForm::kTbq3_0 ? kCodecTables.tbq3.level
                                                : kHeadTables.level[b == 2 ? 0 : b - 2][size_index(d)];
    constexpr float kUnit = book_form(F) ? 1 / kBytesUnit : 1;  // their products with scales may outrange f16
    constexpr int kMask = (1 << b) - 1;
    // Eight threads a row, 16 bytes of each half each.
#pragma unroll 1
    for (int row = int(threadIdx.x) / 8; row < 256; row += int(blockDim.x) / 8) {
      const auto pair = [&](int at) {
        return as_word(
            __floats2half2_rn(level[row >> at & kMask] * kUnit, level[row >> (at + b) & kMask] * kUnit));
      };
      const auto fill = [&](int half, uint32_t even, uint32_t odd) {
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%1,%2};" ::"r"(table + row * 256 + half * 128 +
                                                                   int(threadIdx.x) % 8 * 16),
                     "r"(even), "r"(odd)
                     : "memory");
      };
      const uint32_t first = pair(0);
      if constexpr (b == 2) {
        const uint32_t second = pair(4);
        fill(0, first, second), fill(1, first, second);
      } else {
        fill(0, first, first);
        if constexpr (b == 3) {
          const uint32_t upper = pair(2);
          fill(1, upper, upper);
        }
      }
    }
  }
}
// Byte `k` of `x` over `mine`, the lane's place in the first row.
__device__ __forceinline__ uint32_t row_address(uint32_t x, int k, uint32_t mine) {
  return __byte_perm(x, mine, 0x7604 | k << 4);
}
__device__ __forceinline__ uint32_t load_level(uint32_t x, int k, uint32_t mine) {
  return load_table(row_address(x, k, mine));
}
// 3 bits: of the upper six bits of the byte.
__device__ __forceinline__ uint32_t load_upper_level(uint32_t x, int k, uint32_t mine) {
  uint32_t v;
  asm("ld.shared.u32 %0, [%1+128];" : "=r"(v) : "r"(row_address(x, k, mine)));
  return v;
}
// 2 bits: all four levels.
__device__ __forceinline__ uint2 load_levels(uint32_t x, int k, uint32_t mine) {
  uint2 v;
  asm("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(row_address(x, k, mine)));
  return v;
}
// Pair j of a stream of 6-bit pairs of codes; `late` is the stream without its first 4 bits.
__device__ __forceinline__ uint32_t load_six(const uint32_t* early, const uint32_t* late, int j,
                                             uint32_t mine) {
  const int at = j / 4 * 3 + (j % 4 == 3 ? 2 : j % 4 / 2);
  const uint32_t x = (j % 4 == 0 || j % 4 == 3 ? early : late)[at / 4];
  return j % 2 ? load_upper_level(x, at % 4, mine) : load_level(x, at % 4, mine);
}

// Bits [from, from + count) of the stream at bit `to`; others as they come. All known when compiled.
__device__ __forceinline__ uint32_t stream_bits(const uint32_t* w, int from, int count, int to) {
  const int word = from / 32, r = from % 32;
  if (r + count > 32) return __funnelshift_r(w[word], w[word + 1], r - to);
  return r >= to ? w[word] >> (r - to) : w[word] << (to - r);
}
// Of a trellis type, w: the word before a run of codes, then the run. 2 and 3 bits: the level of value i;
// mine: the lane's place in the first row of the table.
template <int b>
__device__ __forceinline__ uint32_t load_state(const uint32_t* w, int i, uint32_t mine) {
  constexpr int kWindow = b == 2 ? 8 : 9;
  return load_table((stream_bits(w, 26 + b * i, kWindow, 7) & (((1u << kWindow) - 1) << 7)) | mine);
}
// Levels of values 2 p and 2 p + 1; place: as trellis_place() says.
template <int b>
__device__ __forceinline__ uint32_t load_trellis(const uint32_t* w, int p, uint32_t place) {
  if constexpr (b == 4) {
    const int from = 24 + 8 * p;
    const uint32_t codes = (stream_bits(w, from + 4, 12, 2) & 0x3ffcu) | place;
    return load_table((stream_bits(w, from, 1, 14) & 0x4000u) | codes);
  } else {
    return __byte_perm(load_state<b>(w, 2 * p, place), load_state<b>(w, 2 * p + 1, place), 0x5410);
  }
}
template <int b>
__device__ __forceinline__ uint32_t trellis_place(uint32_t table, int lane) {
  return b == 4 ? table : table + lane * 4;
}
// Word i of row r of a 3-bit trellis slice, the piece before the codes first: piece_place() keeps words
// whole.
template <bool kValues>
__device__ __forceinline__ uint32_t trellis_word(uint32_t slot, int r, int i) {
  return slot + r * Slice<KvForm::kTbq3Ht>::kStride + piece_place<KvForm::kTbq3Ht, kValues>(r, i >> 2) * 16 +
         (i & 3) * 4;
}

// ---- keys ----

// This lane's run of 32 codes of row r.
template <KvForm F>
__device__ __forceinline__ void read_key_codes(uint32_t slot, int r, int t, uint32_t (&x)[4]) {
  using S = Slice<F>;
  constexpr int b = S::kBits;
  const uint32_t at = slot + r * S::kStride + S::kBefore * 16 + t * (4 * b);
  if constexpr (b == 4) {
    const uint4 v = load_shared4(at);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  } else if constexpr (b == 2) {
    const uint2 v = load_shared2(at);
    x[0] = v.x, x[1] = v.y;
  } else if constexpr (is_trellis(F)) {
#pragma unroll
    for (int i = 0; i < 3; ++i) x[i] = load_shared(trellis_word<false>(slot, r, 4 + 3 * t + i));
  } else {
#pragma unroll
    for (int i = 0; i < 3; ++i) x[i] = load_shared(at + 4 * i);
  }
}

// Two codes of each of the rows g (x) and g + 8 (y) make a product's operands; q: right operands.
template <KvForm F>
__device__ __forceinline__ void score_codes(uint32_t slot, const uint32_t (&q)[8][2], uint32_t table,
                                            int lane, float (&s)[2][4]) {
  constexpr int b = code_bits(F);
  const int g = lane / 4, t = lane % 4;
  uint32_t x[4], y[4];
  read_key_codes<F>(slot, g, t, x);
  read_key_codes<F>(slot, g + 8, t, y);
  if constexpr (is_trellis(F)) {
    const uint32_t before =
        b == 3 ? trellis_word<false>(slot, g, 3 + 3 * t) : slot + g * Slice<F>::kStride + 12 + t * (4 * b);
    const uint32_t place = trellis_place<b>(table, lane);
    uint32_t w[5], z[5];
    w[0] = load_shared(before), z[0] = load_shared(before + 8 * Slice<F>::kStride);
#pragma unroll
    for (int i = 0; i < b; ++i) w[i + 1] = x[i], z[i + 1] = y[i];
#pragma unroll
    for (int n = 0; n < 8; ++n)
      product(s[n % 2], load_trellis<b>(w, 2 * n, place), load_trellis<b>(z, 2 * n, place),
              load_trellis<b>(w, 2 * n + 1, place), load_trellis<b>(z, 2 * n + 1, place), q[n][0], q[n][1]);
  } else if constexpr (b == 4) {
    const uint32_t mine = table + lane * 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int i = n / 2, k = n % 2 * 2;
      product(s[n % 2], load_level(x[i], k, mine), load_level(y[i], k, mine), load_level(x[i], k + 1, mine),
              load_level(y[i], k + 1, mine), q[n][0], q[n][1]);
    }
  } else if constexpr (b == 3) {
    const uint32_t mine = table + lane * 4;
    uint32_t u[3], v[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      u[i] = i < 2 ? __funnelshift_r(x[i], x[i + 1], 4) : x[i] >> 4;
      v[i] = i < 2 ? __funnelshift_r(y[i], y[i + 1], 4) : y[i] >> 4;
    }
#pragma unroll
    for (int n = 0; n < 8; ++n)
      product(s[n % 2], load_six(x, u, 2 * n, mine), load_six(y, v, 2 * n, mine),
              load_six(x, u, 2 * n + 1, mine), load_six(y, v, 2 * n + 1, mine), q[n][0], q[n][1]);
  } else {
    const uint32_t mine = table + lane * 8;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const uint2 l = load_levels(x[n / 4], n % 4, mine), m = load_levels(y[n / 4], n % 4, mine);
      product(s[n % 2], l.x, m.x, l.y, m.y, q[n][0], q[n][1]);
    }
  }
}

// bf16 as it is, f32 in two terms.
template <KvForm F>
__device__ __forceinline__ void score_wide(uint32_t slot, const uint32_t (&q)[16][2], int lane,
                                           float (&s)[2][4]) {
  const int g = lane / 4, t = lane % 4;
  if constexpr (F == KvForm::kBf16) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const uint32_t at = slot + g * 256 + piece_place<F, false>(g, 4 * t + u) * 16;
      const uint4 x = load_shared4(at), y = load_shared4(at + 8 * 256);
#pragma unroll
      for (int term = 0; term < 16; term += 8) {
        product_bf16(s[0], x.x, y.x, x.y, y.y, q[term + 2 * u][0], q[term + 2 * u][1]);
        product_bf16(s[1], x.z, y.z, x.w, y.w, q[term + 2 * u + 1][0], q[term + 2 * u + 1][1]);
      }
    }
  } else {
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const uint32_t at = slot + g * 512 + piece_place<F, false>(g, 8 * t + u) * 16;
      const uint4 x = load_shared4(at), y = load_shared4(at + 8 * 512);
      const Terms a = two_terms(x.x, x.y), b = two_terms(y.x, y.y), c = two_terms(x.z, x.w),
                  d = two_terms(y.z, y.w);
      product_bf16(s[0], a.high, b.high, c.high, d.high, q[u][0], q[u][1]);
      product_bf16(s[1], a.low, b.low, c.low, d.low, q[u][0], q[u][1]);
      product_bf16(s[0], a.high, b.high, c.high, d.high, q[8 + u][0], q[8 + u][1]);
      product_bf16(s[1], a.low, b.low, c.low, d.low, q[8 + u][0], q[8 + u][1]);
    }
  }
}

// Pair i of 16 values' codes of a run, times the scale.
template <KvForm F>
__device__ __forceinline__ uint32_t scaled_pair(const uint32_t* x, uint32_t fifth, int i, __half2 scale) {
  uint32_t w = __byte_perm(x[i / 4], 0, i % 4 * 0x101);  // a byte in both halves
  if constexpr (F == KvForm::kQ4_0) return scaled_nibbles<Nibbles::kSplit, 8>(w, scale);
  const int at = 2 * i;
  const uint32_t low = at > 4 ? fifth >> (at - 4) : fifth << (4 - at),
                 high = at > 23 ? fifth >> (at - 23) : fifth << (23 - at);
  w = (w & 0x00f0000fu) | (low & 0x10u) | (high & 0x01000000u);
  return scaled_nibbles<Nibbles::kSplit, 16>(w, scale);
}
template <KvForm F>
__device__ __forceinline__ void score_blocks(uint32_t slot, const uint32_t (&q)[8][2], uint32_t table,
                                             int lane, float (&s)[2][4]) {
  using S = Slice<F>;
  const int g = lane / 4, t = lane % 4;
  const uint32_t scales = slot + S::kScalesAt + lane * 2;
  const __half2 first = __half2half2(load_half(scales)), second = __half2half2(load_half(scales + 64));
  uint32_t x[4], y[4];
  read_key_codes<F>(slot, g, t, x);
  read_key_codes<F>(slot, g + 8, t, y);
  if constexpr (step_form(F)) {
    uint32_t above = 0, below = 0;
    if constexpr (F == KvForm::kQ5_0)
      above = load_shared(slot + S::kHighAt + lane * 4),
      below = load_shared(slot + S::kHighAt + 128 + lane * 4);
#pragma unroll
    for (int n = 0; n < 8; ++n)
      product(s[n % 2], scaled_pair<F>(x, above, 2 * n, first), scaled_pair<F>(y, below, 2 * n, second),
              scaled_pair<F>(x, above, 2 * n + 1, first), scaled_pair<F>(y, below, 2 * n + 1, second),
              q[n][0], q[n][1]);
  } else {
    const uint32_t mine = table + lane * 4;
    uint32_t u[3], v[3];
    if constexpr (S::kBits == 3)
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        u[i] = i < 2 ? __funnelshift_r(x[i], x[i + 1], 4) : x[i] >> 4;
        v[i] = i < 2 ? __funnelshift_r(y[i], y[i + 1], 4) : y[i] >> 4;
      }
    const auto level = [&](const uint32_t* codes, const uint32_t* late, int i, __half2 scale) {
      if constexpr (S::kBits == 3) return as_word(__hmul2(as_half2(load_six(codes, late, i, mine)), scale));
      return as_word(__hmul2(as_half2(load_level(codes[i / 4], i % 4, mine)), scale));
    };
#pragma unroll
    for (int n = 0; n < 8; ++n)
      product(s[n % 2], level(x, u, 2 * n, first), level(y, v, 2 * n, second), level(x, u, 2 * n + 1, first),
              level(y, v, 2 * n + 1, second), q[n][0], q[n][1]);
  }
}

// s += keys x queries over the slice. Two sums, so that products need not wait for each other.
template <KvForm F>
__device__ __forceinline__ void score_slice(uint32_t slot, const uint32_t (&q)[8 * query_terms(F)][2],
                                            uint32_t table, int lane, float (&s)[2][4]) {
  const int g = lane / 4, t = lane % 4;
  if constexpr (wide_form(F)) {
    score_wide<F>(slot, q, lane, s);
  } else if constexpr (step_form(F) || book_form(F)) {
    score_blocks<F>(slot, q, table, lane, s);
  } else if constexpr (coded(F)) {
    score_codes<F>(slot, q, table, lane, s);
  } else if constexpr (F == KvForm::kF16) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const uint32_t at = slot + g * 256 + piece_place<F, false>(g, 4 * t + u) * 16;
      const uint4 x = load_shared4(at), y = load_shared4(at + 8 * 256);
      product(s[0], x.x, y.x, x.y, y.y, q[2 * u][0], q[2 * u][1]);
      product(s[1], x.z, y.z, x.w, y.w, q[2 * u + 1][0], q[2 * u + 1][1]);
    }
  } else {
    const uint32_t scales = slot + 2048 + lane * 2;
    const __half2 first = __half2half2(load_half(scales)), second = __half2half2(load_half(scales + 64));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t at = slot + g * 128 + piece_place<F, false>(g, 2 * t + h) * 16;
      const uint4 v = load_shared4(at), w = load_shared4(at + 8 * 128);
      const uint32_t x[4] = {v.x, v.y, v.z, v.w}, y[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t a = x[i] ^ 0x80808080u, c = y[i] ^ 0x80808080u;
        product(s[i % 2], scaled_bytes(__byte_perm(a, 0, 0x4140), first),
                scaled_bytes(__byte_perm(c, 0, 0x4140), second),
                scaled_bytes(__byte_perm(a, 0, 0x4342), first),
                scaled_bytes(__byte_perm(c, 0, 0x4342), second), q[4 * h + i][0], q[4 * h + i][1]);
      }
    }
  }
}

// ---- values ----

// This lane's k-th key: (0, 1) and (2, 3) are the pairs of a product.
__device__ __forceinline__ int key_of(int t, int k) { return t + k % 2 * 8 + k / 2 * 4; }

// Of row r of a trellis type: this lane's run of 16 codes and the word before it.
template <KvForm F>
__device__ __forceinline__ void read_run(uint32_t slot, int r, int g, uint32_t (&w)[4]) {
  constexpr int b = code_bits(F);
  const uint32_t row = slot + r * Slice<F>::kStride;
  if constexpr (b == 4) {
    const uint32_t at = row + 16 + g * 8;
    const uint2 v = load_shared2(at);
    w[0] = load_shared(at - 4), w[1] = v.x, w[2] = v.y;
  } else if constexpr (b == 2) {
    const uint32_t at = row + 12 + g * 4;
    w[0] = load_shared(at), w[1] = load_shared(at + 4), w[2] = 0;
  } else {
    const int at = 3 + g / 2 * 3 + g % 2, skip = g % 2 * 16;
    const uint32_t a = load_shared(trellis_word<true>(slot, r, at)),
                   c = load_shared(trellis_word<true>(slot, r, at + 1)),
                   d = load_shared(trellis_word<true>(slot, r, at + 2));
    w[0] = __funnelshift_r(a, c, skip), w[1] = __funnelshift_r(c, d, skip), w[2] = d >> skip;
  }
  w[3] = 0;
}

// out += values x weights over the slice; w: weights of keys (t, t + 8) and (t + 4, t + 12) for head g.
template <KvForm F>
__device__ __forceinline__ void mix_trellis(uint32_t slot, const uint32_t (&w)[2], uint32_t table, int lane,
                                            float (&out)[8][4]) {
  constexpr int b = code_bits(F);
  const int g = lane / 4, t = lane % 4;
  uint32_t x[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k) read_run<F>(slot, key_of(t, k), g, x[k]);
  const uint32_t mine = trellis_place<b>(table, lane);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if constexpr (b < 4) {
      const auto pair = [&](int k, int i) {
        return __byte_perm(load_state<b>(x[k], i, mine), load_state<b>(x[k + 1], i, mine), 0x5410);
      };
      product(out[j], pair(0, 2 * j), pair(0, 2 * j + 1), pair(2, 2 * j), pair(2, 2 * j + 1), w[0], w[1]);
    } else {
      uint32_t l[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) l[k] = load_trellis<b>(x[k], j, mine);
      product(out[j], __byte_perm(l[0], l[1], 0x5410), __byte_perm(l[0], l[1], 0x7632),
              __byte_perm(l[2], l[3], 0x5410), __byte_perm(l[2], l[3], 0x7632), w[0], w[1]);
    }
  }
}
// Scales of keys (t, t + 8) and (t + 4, t + 12) for this lane's values.
template <KvForm F>
__device__ __forceinline__ void read_block_scales(uint32_t slot, int g, int t, __half2 (&scale)[2]) {
  const uint32_t at = slot + Slice<F>::kScalesAt + t * 8 + g / 2 * 2;
  scale[0] = __halves2half2(load_half(at), load_half(at + 64));
  scale[1] = __halves2half2(load_half(at + 32), load_half(at + 96));
}
template <KvForm F>
__device__ __forceinline__ void mix_codes(uint32_t slot, const uint32_t (&w)[2], uint32_t table, int lane,
                                          float (&out)[8][4]) {
  constexpr int b = code_bits(F);
  const int g = lane / 4, t = lane % 4;
  uint32_t x[4][2], even[2][2], odd[2][2];
#pragma unroll
  for (int k = 0; k < 4; ++k) read_codes<b>(slot, key_of(t, k), g, x[k]);
#pragma unroll
  for (int i = 0; i < 2; ++i) interleave<b>(x[2 * i], x[2 * i + 1], even[i], odd[i]);
  __half2 scale[2];
  if constexpr (book_form(F)) read_block_scales<F>(slot, g, t, scale);
  const auto scaled = [&](uint32_t level, int i) {
    if constexpr (book_form(F)) return as_word(__hmul2(as_half2(level), scale[i]));
    return level;
  };
  if constexpr (b == 4) {
    const uint32_t mine = table + lane * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int i = j / 4, k = j % 4;
      product(out[j], scaled(load_level(even[0][i], k, mine), 0), scaled(load_level(odd[0][i], k, mine), 0),
              scaled(load_level(even[1][i], k, mine), 1), scaled(load_level(odd[1][i], k, mine), 1), w[0],
              w[1]);
    }
  } else if constexpr (b == 3) {
    const uint32_t mine = table + lane * 4;
    uint32_t even_late[2][2], odd_late[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      even_late[i][0] = __funnelshift_r(even[i][0], even[i][1], 4), even_late[i][1] = even[i][1] >> 4;
      odd_late[i][0] = __funnelshift_r(odd[i][0], odd[i][1], 4), odd_late[i][1] = odd[i][1] >> 4;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
      product(out[j], scaled(load_six(even[0], even_late[0], j, mine), 0),
              scaled(load_six(odd[0], odd_late[0], j, mine), 0),
              scaled(load_six(even[1], even_late[1], j, mine), 1),
              scaled(load_six(odd[1], odd_late[1], j, mine), 1), w[0], w[1]);
  } else {
    const uint32_t mine = table + lane * 8;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const uint2 a = load_levels(even[0][0], m, mine), c = load_levels(odd[0][0], m, mine),
                  d = load_levels(even[1][0], m, mine), e = load_levels(odd[1][0], m, mine);
      product(out[2 * m], a.x, c.x, d.x, e.x, w[0], w[1]);
      product(out[2 * m + 1], a.y, c.y, d.y, e.y, w[0], w[1]);
    }
  }
}

// Fifth bits of this lane's 16 values of two keys, each in a half.
__device__ __forceinline__ uint32_t read_fifth(uint32_t high, int g, int key) {
  const uint32_t at = high + key * 16 + g / 2 * 4, a = load_shared(at), b = load_shared(at + 8 * 16);
  return __byte_perm(a, b, g % 2 ? 0x7632 : 0x5410);
}
template <KvForm F>
__device__ __forceinline__ void mix_steps(uint32_t slot, const uint32_t (&w)[2], int lane,
                                          float (&out)[8][4]) {
  constexpr bool kFive = F == KvForm::kQ5_0;
  constexpr int kMiddle = kFive ? 16 : 8;  // the code that stands for zero
  const int g = lane / 4, t = lane % 4;
  uint32_t x[4][2], fifth[2] = {};
  __half2 scale[2];
  read_block_scales<F>(slot, g, t, scale);
#pragma unroll
  for (int k = 0; k < 4; ++k) read_codes<4>(slot, key_of(t, k), g, x[k]);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if constexpr (kFive) fifth[i] = read_fifth(slot + Slice<F>::kHighAt, g, t + 4 * i);
  // Bit `from` of both halves at bit `to` of them.
  const auto bits = [](uint32_t v, int from, int to) {
    return (from > to ? v >> (from - to) : v << (to - from)) & (0x00010001u << to);
  };
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t even[2], odd[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t two = __byte_perm(x[2 * i][j / 4], x[2 * i + 1][j / 4], j % 4 | (4 + j % 4) << 8);
      uint32_t lower = two, upper = two;
      if constexpr (kFive) {
        lower = (two & 0x000f000fu) | bits(fifth[i], 2 * j, 4);
        upper = (two & 0x00f000f0u) | bits(fifth[i], 2 * j + 1, 8);
      }
      even[i] = scaled_nibbles<Nibbles::kLower, kMiddle>(lower, scale[i]);
      odd[i] = scaled_nibbles<Nibbles::kUpper, kMiddle>(upper, scale[i]);
    }
    product(out[j], even[0], odd[0], even[1], odd[1], w[0], w[1]);
  }
}

// w: as mix_slice(), then what bf16 leaves of the weights.
template <KvForm F>
__device__ __forceinline__ void mix_wide(uint32_t slot, const uint32_t (&w)[4], int lane,
                                         float (&out)[8][4]) {
  const int g = lane / 4, t = lane % 4;
  if constexpr (F == KvForm::kBf16) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint4 x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        x[k] = load_shared4(slot + key_of(t, k) * 256 + piece_place<F, true>(t, 2 * g + h) * 16);
      const auto mix = [&](int j, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
        const uint32_t a = __byte_perm(x0, x1, 0x5410), b = __byte_perm(x0, x1, 0x7632),
                       c = __byte_perm(x2, x3, 0x5410), d = __byte_perm(x2, x3, 0x7632);
        product_bf16(out[j], a, b, c, d, w[0], w[1]);
        product_bf16(out[j], a, b, c, d, w[2], w[3]);
      };
      mix(4 * h, x[0].x, x[1].x, x[2].x, x[3].x);
      mix(4 * h + 1, x[0].y, x[1].y, x[2].y, x[3].y);
      mix(4 * h + 2, x[0].z, x[1].z, x[2].z, x[3].z);
      mix(4 * h + 3, x[0].w, x[1].w, x[2].w, x[3].w);
    }
  } else {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      uint4 x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        x[k] = load_shared4(slot + key_of(t, k) * 512 + piece_place<F, true>(t, 4 * g + u) * 16);
      const auto mix = [&](int j, uint32_t x0, uint32_t y0, uint32_t x1, uint32_t y1, uint32_t x2,
                           uint32_t y2, uint32_t x3, uint32_t y3) {
        const Terms a = two_terms(x0, x1), b = two_terms(y0, y1), c = two_terms(x2, x3),
                    d = two_terms(y2, y3);
        product_bf16(out[j], a.high, b.high, c.high, d.high, w[0], w[1]);
        product_bf16(out[j], a.low, b.low, c.low, d.low, w[0], w[1]);
        product_bf16(out[j], a.high, b.high, c.high, d.high, w[2], w[3]);
        product_bf16(out[j], a.low, b.low, c.low, d.low, w[2], w[3]);
      };
      mix(2 * u, x[0].x, x[0].y, x[1].x, x[1].y, x[2].x, x[2].y, x[3].x, x[3].y);
      mix(2 * u + 1, x[0].z, x[0].w, x[1].z, x[1].w, x[2].z, x[2].w, x[3].z, x[3].w);
    }
  }
}

template <KvForm F>
__device__ __forceinline__ void mix_slice(uint32_t slot, const uint32_t (&w)[2 * query_terms(F)],
                                          uint32_t table, int lane, float (&out)[8][4]) {
  const int g = lane / 4, t = lane % 4;
  if constexpr (wide_form(F)) {
    mix_wide<F>(slot, w, lane, out);
  } else if constexpr (step_form(F)) {
    mix_steps<F>(slot, w, lane, out);
  } else if constexpr (book_form(F)) {
    mix_codes<F>(slot, w, table, lane, out);
  } else if constexpr (is_trellis(F)) {
    mix_trellis<F>(slot, w, table, lane, out);
  } else if constexpr (coded(F)) {
    mix_codes<F>(slot, w, table, lane, out);
  } else if constexpr (F == KvForm::kF16) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint4 x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int r = key_of(t, k);
        x[k] = load_shared4(slot + r * 256 + piece_place<F, true>(t, 2 * g + h) * 16);
      }
      const auto mix = [&](int j, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
        product(out[j], __byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632), __byte_perm(x2, x3, 0x5410),
                __byte_perm(x2, x3, 0x7632), w[0], w[1]);
      };
      mix(4 * h, x[0].x, x[1].x, x[2].x, x[3].x);
      mix(4 * h + 1, x[0].y, x[1].y, x[2].y, x[3].y);
      mix(4 * h + 2, x[0].z, x[1].z, x[2].z, x[3].z);
      mix(4 * h + 3, x[0].w, x[1].w, x[2].w, x[3].w);
    }
  } else {
    const uint32_t scales = slot + 2048 + t * 8 + g / 2 * 2,
                   from = slot + t * 128 + piece_place<F, true>(t, g) * 16;
    const __half2 first = __halves2half2(load_half(scales), load_half(scales + 64)),
                  second = __halves2half2(load_half(scales + 32), load_half(scales + 96));
    uint32_t x[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 v = load_shared4(from + (k % 2 * 8 + k / 2 * 4) * 128);
      x[k][0] = v.x ^ 0x80808080u, x[k][1] = v.y ^ 0x80808080u;
      x[k][2] = v.z ^ 0x80808080u, x[k][3] = v.w ^ 0x80808080u;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int i = j / 2;
      const uint32_t even = j % 2 ? 0x0602 : 0x0400, odd = j % 2 ? 0x0703 : 0x0501;
      product(out[j], scaled_bytes(__byte_perm(x[0][i], x[1][i], even), first),
              scaled_bytes(__byte_perm(x[0][i], x[1][i], odd), first),
              scaled_bytes(__byte_perm(x[2][i], x[3][i], even), second),
              scaled_bytes(__byte_perm(x[2][i], x[3][i], odd), second), w[0], w[1]);
    }
  }
}

}  // namespace kvasir::cuda
