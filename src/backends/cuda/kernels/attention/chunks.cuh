// A chunk: 16 keys by 128 values of one head, as stored, in a slot of shared memory; and from there to the
// left operands of the matrix units, 16 x 16 values a product. Lane 4 g + t of a warp
//   keys:   holds values 32 t .. 32 t + 31 of keys g and g + 8; product s takes four of them, 4 s + 0..3
//   values: holds values 16 g .. 16 g + 15 of keys t, t + 4, t + 8, t + 12; product j takes 2 j and 2 j + 1
// which are whole runs of codes. Levels of codes come from a table of pairs: one copy a lane, so that 32
// lanes never meet in a bank, and two codes cost a shift, a mask and a load.
#pragma once
#include "backends/cuda/kernels/attention/pages.cuh"
#include "backends/cuda/kernels/mma.cuh"

namespace kvasir::cuda {

inline constexpr int kChunkKeys = 16, kChunkDims = 128;
inline constexpr int kTailBytes = 64;  // of a slot: scales of 16 keys, scales of the same 16 values

constexpr bool chunk_form(KvForm form) {
  return form == KvForm::kF16 || form == KvForm::kQ8_0 || form == KvForm::kTbq2H || form == KvForm::kTbq3H ||
         form == KvForm::kTbq4H;
}
// Codes of levels, one scale a row.
__host__ __device__ constexpr bool chunk_levels(KvForm form) {
  return form == KvForm::kTbq2H || form == KvForm::kTbq3H || form == KvForm::kTbq4H;
}
// A chunk's row has as many 16-byte pieces as a code has bits.
__host__ __device__ constexpr int slot_bytes(KvForm form) {
  return kChunkKeys * 16 * code_bits(form) + (form == KvForm::kQ8_0 ? kChunkKeys * 8 : 0) + kTailBytes;
}

// Where piece p of row r lies in its row, so that the lanes that read at once meet no bank twice.
template <KvForm F, bool kValues>
__device__ __forceinline__ int piece_place(int r, int p) {
  if constexpr (kValues) {
    if constexpr (F == KvForm::kF16) return p ^ ((r & 1) | ((r & 2) << 1));
    if constexpr (F == KvForm::kQ8_0) return p ^ ((r & 3) << 1);
    if constexpr (F == KvForm::kTbq4H) return p ^ (r & 2);
  } else {
    if constexpr (F == KvForm::kF16) return (4 * (p & 3) + (p >> 2)) ^ ((r & 1) << 2);
    if constexpr (F == KvForm::kQ8_0) return p ^ (r & 1);
  }
  return p;
}

// `bytes` (rounded down to 16) from `p` on are on their way to L2: needs no register and no later wait.
__device__ __forceinline__ void prefetch_l2(const void* p, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes / 16 * 16) : "memory");
#endif
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Shared memory by its own addresses: generic ones cost a 64-bit sum a load. In the order written, but those
// of tables, which never change.
__device__ __forceinline__ uint4 load_shared4(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 load_shared2(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ uint32_t load_shared(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ __half load_half(uint32_t at) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
  return __ushort_as_half(v);
}
__device__ __forceinline__ uint32_t load_table(uint32_t at) {
  uint32_t v;
  asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
template <int kBytes>
__device__ __forceinline__ void copy_to(uint32_t to, const void* from, bool valid) {
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0)
                 : "memory");
}
// c[16][8] += a[16][16] b[16][8], free to move.
__device__ __forceinline__ void product(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Keeps what is computed from it inside its loop: hoisted for every type at once it would not fit in
// registers.
__device__ __forceinline__ int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Rows [key, key + 16) of the region, values [128 c, 128 c + 128). Rows of values outside [low, high) are
// zeroed: what no query sees cannot spread a NaN.
template <int D, KvForm F, bool kValues>
__device__ __forceinline__ void copy_chunk(const uint8_t* region, int key, int c, int low, int high,
                                           uint32_t slot, int known_lane) {
  constexpr int kPieces = code_bits(F), kAll = kChunkKeys * kPieces, kRow = D / 8 * code_bits(F);
  const int lane = anew(known_lane);
  const uint8_t* from = region + uint32_t(key * kRow + c * 16 * kPieces);
  if constexpr (32 % kPieces == 0) {
    // Rows of one lane are 32 / kPieces apart; the place of a piece repeats every 8 rows, or every 2.
    constexpr int kStep = 32 / kPieces;
    const int r = lane / kPieces, p = lane % kPieces;
    from += uint32_t(r * kRow + p * 16);
#pragma unroll
    for (int i = 0; i < kAll / 32; ++i) {
      const int row = r + i * kStep;
      copy_to<16>(slot + (row * kPieces + piece_place<F, kValues>(row, p)) * 16, from + i * kStep * kRow,
                  !kValues || (row >= low && row < high));
    }
  } else {
#pragma unroll
    for (int i = 0; i < (kAll + 31) / 32; ++i) {
      const int at = i * 32 + lane, r = at / kPieces, p = at % kPieces;
      if (at < kAll)
        copy_to<16>(slot + at * 16, from + uint32_t(r * kRow + p * 16), !kValues || (r >= low && r < high));
    }
  }
  if constexpr (F == KvForm::kQ8_0)
    if (lane < kChunkKeys)
      copy_to<8>(slot + kAll * 16 + lane * 8, region + kPage * D + uint32_t((key + lane) * (D / 16) + c * 8),
                 !kValues || (lane >= low && lane < high));
}

// Pairs of levels: entry (second code, first code) of bits b lies 32 words apart, a word a lane. Tables of 4,
// 3 and 2 bits follow each other, each at a multiple of its own size, so that an index is or-ed in.
inline constexpr int kTableBytes = (128 << 8) + (128 << 6) + (128 << 4);
template <int b>
__device__ __forceinline__ uint32_t table_of(uint32_t tables) {
  return tables + (b == 4 ? 0 : b == 3 ? 128 << 8 : (128 << 8) + (128 << 6));
}
template <int b>
__device__ __forceinline__ void fill_level_pairs(uint32_t tables, int d) {
  const float* level = kHeadTables.level[b - 2][size_index(d)];
  for (int entry = int(threadIdx.x) / 32; entry < 1 << (2 * b); entry += int(blockDim.x) / 32) {
    const __half2 pair = __floats2half2_rn(level[entry & ((1 << b) - 1)], level[entry >> b]);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(table_of<b>(tables) + (entry * 32 + threadIdx.x % 32) * 4),
                 "r"(*reinterpret_cast<const uint32_t*>(&pair))
                 : "memory");
  }
}
__device__ __forceinline__ void fill_level_pairs(KvForm form, uint32_t tables, int d) {
  if (form == KvForm::kTbq2H) fill_level_pairs<2>(tables, d);
  if (form == KvForm::kTbq3H) fill_level_pairs<3>(tables, d);
  if (form == KvForm::kTbq4H) fill_level_pairs<4>(tables, d);
}
// The levels of the two codes at `bit` of the words, first code in the low half. `bit`: known at compile
// time; `mine`: this lane's column of the table.
template <int b>
__device__ __forceinline__ uint32_t level_pair(const uint32_t* words, int bit, uint32_t mine) {
  const int word = bit / 32, r = bit % 32;
  uint32_t x;
  if (r < 7)
    x = words[word] << (7 - r);
  else if (r + 2 * b <= 32)
    x = words[word] >> (r - 7);
  else
    x = __funnelshift_r(words[word], words[word + 1], r - 7);
  return load_table((x & (((1u << (2 * b)) - 1) << 7)) | mine);
}

__device__ __forceinline__ __half2 as_half2(uint32_t x) { return *reinterpret_cast<const __half2*>(&x); }
__device__ __forceinline__ uint32_t as_word(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }

// Bytes 0 and 2 of `x`, offset by 128, as f16 times the scales. 0x6400 | q is the f16 1024 + q: exact.
__device__ __forceinline__ uint32_t scaled_bytes(uint32_t x, __half2 scale) {
  const uint32_t biased = (x & 0x00ff00ffu) | 0x64006400u;
  return as_word(__hmul2(__hsub2(as_half2(biased), as_half2(0x64806480u)), scale));
}

// s += keys x queries over the chunk; q: [4][32] x 16 bytes, right operands of two products each. Two sums,
// so that products need not wait for each other.
template <KvForm F>
__device__ __forceinline__ void score_chunk(uint32_t slot, uint32_t q, uint32_t tables, int known_lane,
                                            float (&s)[2][4]) {
  const int lane = anew(known_lane), g = lane / 4, t = lane % 4;
  q += lane * 16;
  if constexpr (F == KvForm::kF16) {
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const uint4 right = load_shared4(q + u * 512);
      const uint32_t at = slot + g * 256 + piece_place<F, false>(g, 4 * t + u) * 16;
      const uint4 x = load_shared4(at), y = load_shared4(at + 8 * 256);
      product(s[0], x.x, y.x, x.y, y.y, right.x, right.y);
      product(s[1], x.z, y.z, x.w, y.w, right.z, right.w);
    }
  } else if constexpr (F == KvForm::kQ8_0) {
    const uint32_t scales = slot + 2048 + lane * 2;
    const __half2 first = __half2half2(load_half(scales)), second = __half2half2(load_half(scales + 64));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t at = slot + g * 128 + piece_place<F, false>(g, 2 * t + h) * 16;
      const uint4 v = load_shared4(at), w = load_shared4(at + 8 * 128);
      const uint32_t x[4] = {v.x, v.y, v.z, v.w}, y[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const uint4 right = load_shared4(q + (2 * h + u) * 512);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t a = x[2 * u + i] ^ 0x80808080u, c = y[2 * u + i] ^ 0x80808080u;
          product(
              s[i], scaled_bytes(__byte_perm(a, 0, 0x4140), first),
              scaled_bytes(__byte_perm(c, 0, 0x4140), second), scaled_bytes(__byte_perm(a, 0, 0x4342), first),
              scaled_bytes(__byte_perm(c, 0, 0x4342), second), i ? right.z : right.x, i ? right.w : right.y);
        }
      }
    }
  } else {
    constexpr int b = code_bits(F);
    const uint32_t mine = table_of<b>(tables) + lane * 4, from = slot + lane * (4 * b);
    constexpr int kEight = 8 * 16 * b;  // rows further
    uint32_t x[b], y[b];
    if constexpr (b == 4) {
      const uint4 v = load_shared4(from), w = load_shared4(from + kEight);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w, y[0] = w.x, y[1] = w.y, y[2] = w.z, y[3] = w.w;
    } else if constexpr (b == 2) {
      const uint2 v = load_shared2(from), w = load_shared2(from + kEight);
      x[0] = v.x, x[1] = v.y, y[0] = w.x, y[1] = w.y;
    } else {
#pragma unroll
      for (int i = 0; i < b; ++i) x[i] = load_shared(from + 4 * i), y[i] = load_shared(from + kEight + 4 * i);
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const uint4 right = load_shared4(q + u * 512);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int bit = (2 * u + i) * 4 * b;
        product(s[i], level_pair<b>(x, bit, mine), level_pair<b>(y, bit, mine),
                level_pair<b>(x, bit + 2 * b, mine), level_pair<b>(y, bit + 2 * b, mine),
                i ? right.z : right.x, i ? right.w : right.y);
      }
    }
  }
}

// The 16 codes of row r that are this lane's.
template <int b>
__device__ __forceinline__ void read_codes(uint32_t slot, int r, int g, uint32_t (&w)[2]) {
  const uint32_t row = slot + r * 16 * b;
  if constexpr (b == 4) {
    const uint2 v = load_shared2(row + piece_place<KvForm::kTbq4H, true>(r, g / 2) * 16 + g % 2 * 8);
    w[0] = v.x, w[1] = v.y;
  } else if constexpr (b == 3) {
    const uint32_t at = row + g / 2 * 12 + g % 2 * 4, a = load_shared(at), c = load_shared(at + 4);
    w[0] = __funnelshift_r(a, c, g % 2 * 16);
    w[1] = c >> (g % 2 * 16);
  } else {
    w[0] = load_shared(row + g * 4);
    w[1] = 0;
  }
}
// Codes of two keys, value by value: pairs of even values, pairs of odd ones.
template <int b>
__device__ __forceinline__ void interleave(const uint32_t (&x)[2], const uint32_t (&y)[2],
                                           uint32_t (&even)[2], uint32_t (&odd)[2]) {
  constexpr uint32_t kLow = b == 4 ? 0x0f0f0f0fu : b == 3 ? 0xc71c71c7u : 0x33333333u;
  constexpr uint32_t kHigh = b == 3 ? 0x00001c71u : kLow;
  even[0] = (x[0] & kLow) | ((y[0] << b) & ~kLow);
  odd[0] = ((b == 3 ? __funnelshift_r(x[0], x[1], b) : x[0] >> b) & kLow) | (y[0] & ~kLow);
  even[1] = (x[1] & kHigh) | ((b == 3 ? __funnelshift_l(y[0], y[1], b) : y[1] << b) & ~kHigh);
  odd[1] = ((x[1] >> b) & kHigh) | (y[1] & ~kHigh);
}

// out += values x weights over the chunk; w: weights of keys (t, t + 4) and (t + 8, t + 12) for head g.
template <KvForm F>
__device__ __forceinline__ void mix_chunk(uint32_t slot, const uint32_t (&w)[2], uint32_t tables,
                                          int known_lane, float (&out)[8][4]) {
  const int lane = anew(known_lane), g = lane / 4, t = lane % 4;
  if constexpr (F == KvForm::kF16) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t from = slot + t * 256 + piece_place<F, true>(t, 2 * g + h) * 16;
      uint4 x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] = load_shared4(from + k * 1024);
      const auto mix = [&](int j, uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3) {
        product(out[j], __byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632), __byte_perm(x2, x3, 0x5410),
                __byte_perm(x2, x3, 0x7632), w[0], w[1]);
      };
      mix(4 * h, x[0].x, x[1].x, x[2].x, x[3].x);
      mix(4 * h + 1, x[0].y, x[1].y, x[2].y, x[3].y);
      mix(4 * h + 2, x[0].z, x[1].z, x[2].z, x[3].z);
      mix(4 * h + 3, x[0].w, x[1].w, x[2].w, x[3].w);
    }
  } else if constexpr (F == KvForm::kQ8_0) {
    const uint32_t scales = slot + 2048 + t * 8 + g / 2 * 2,
                   from = slot + t * 128 + piece_place<F, true>(t, g) * 16;
    const __half2 first = __halves2half2(load_half(scales), load_half(scales + 32)),
                  second = __halves2half2(load_half(scales + 64), load_half(scales + 96));
    uint32_t x[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 v = load_shared4(from + k * 512);
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
  } else {
    constexpr int b = code_bits(F);
    const uint32_t mine = table_of<b>(tables) + lane * 4;
    uint32_t x[4][2], even[2][2], odd[2][2];
#pragma unroll
    for (int k = 0; k < 4; ++k) read_codes<b>(slot, t + 4 * k, g, x[k]);
#pragma unroll
    for (int i = 0; i < 2; ++i) interleave<b>(x[2 * i], x[2 * i + 1], even[i], odd[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      product(out[j], level_pair<b>(even[0], j * 2 * b, mine), level_pair<b>(odd[0], j * 2 * b, mine),
              level_pair<b>(even[1], j * 2 * b, mine), level_pair<b>(odd[1], j * 2 * b, mine), w[0], w[1]);
  }
}

}  // namespace kvasir::cuda
