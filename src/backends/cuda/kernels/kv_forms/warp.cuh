// A warp as the codecs see it: the same code runs on the device, where every lane is a thread, and on the
// host, where a loop stands for them (tests compare it with the scalar codecs there, without a device).
//   PerLane<T>   one T of each lane; [lane] inside each()
//   each(f)      f(lane) of every lane; what others wrote before is visible after sync()
#pragma once
#include <cstdint>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#define KVASIR_CODEC __device__ __forceinline__
#define KVASIR_UNROLL _Pragma("unroll")
#define KVASIR_UNROLL_4 _Pragma("unroll 4")
#else
#include <cmath>
#include <cstring>

#include "base/half.h"
#define KVASIR_CODEC inline
#define KVASIR_UNROLL
#define KVASIR_UNROLL_4
#endif

namespace kvasir::cuda {

#ifdef __CUDACC__

template <typename T>
struct PerLane {
  T value;
  __device__ T& operator[](int) { return value; }
  __device__ const T& operator[](int) const { return value; }
};

struct Warp {
  int lane;
  template <typename F>
  __device__ __forceinline__ void each(const F& f) const {
    f(lane);
  }
  __device__ __forceinline__ void sync() const { __syncwarp(); }
  // Sum by halves, 16 8 4 2 1: lane 0's, to all.
  __device__ __forceinline__ float fold(PerLane<float> s) const {
#pragma unroll
    for (int width = 16; width > 0; width /= 2)
      s.value = __fadd_rn(s.value, __shfl_down_sync(~0u, s.value, width));
    return __shfl_sync(~0u, s.value, 0);
  }
  __device__ __forceinline__ uint32_t largest(const PerLane<uint32_t>& v) const {
    return __reduce_max_sync(~0u, v.value);
  }
  __device__ __forceinline__ uint32_t least(const PerLane<uint32_t>& v) const {
    return __reduce_min_sync(~0u, v.value);
  }
  __device__ __forceinline__ uint32_t ballot(const PerLane<bool>& v) const {
    return __ballot_sync(~0u, v.value);
  }
  template <typename T>
  __device__ __forceinline__ T of(const PerLane<T>& v, int lane) const {
    return __shfl_sync(~0u, v.value, lane);
  }
};

KVASIR_CODEC float half_value(uint16_t h) { return __half2float(__ushort_as_half(h)); }
KVASIR_CODEC uint16_t nearest_half(float v) { return __half_as_ushort(__float2half_rn(v)); }
KVASIR_CODEC float bits_to_float(uint32_t u) { return __uint_as_float(u); }
KVASIR_CODEC uint32_t float_bits(float v) { return __float_as_uint(v); }
KVASIR_CODEC int nearest_int(float v) { return __float2int_rn(v); }
KVASIR_CODEC int first_bit(uint32_t mask) { return __ffs(int(mask)) - 1; }
KVASIR_CODEC float root(float v) { return __fsqrt_rn(v); }
KVASIR_CODEC double root(double v) { return __dsqrt_rn(v); }
// The lesser of each half, and where it is the first's (also of equals).
KVASIR_CODEC uint32_t least_halves(uint32_t a, uint32_t b, bool& high, bool& low) {
  return __vibmin_u16x2(a, b, &high, &low);
}
KVASIR_CODEC int least_sum(int a, int b, int limit) { return __viaddmin_s32(a, b, limit); }
KVASIR_CODEC uint32_t load_pair(const uint16_t* p) { return *reinterpret_cast<const uint32_t*>(p); }
KVASIR_CODEC void store_four(uint16_t* p, const uint32_t (&words)[4]) {
  *reinterpret_cast<uint4*>(p) = {words[0], words[1], words[2], words[3]};
}

#else

template <typename T>
struct PerLane {
  T value[32];
  T& operator[](int lane) { return value[lane]; }
  const T& operator[](int lane) const { return value[lane]; }
};

struct Warp {
  int lane = 0;
  template <typename F>
  void each(const F& f) const {
    for (int l = 0; l < 32; ++l) f(l);
  }
  void sync() const {}
  float fold(PerLane<float> s) const {
    for (int width = 16; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) s[i] += s[i + width];
    return s[0];
  }
  uint32_t largest(const PerLane<uint32_t>& v) const {
    uint32_t out = v[0];
    for (int l = 1; l < 32; ++l) out = v[l] > out ? v[l] : out;
    return out;
  }
  uint32_t least(const PerLane<uint32_t>& v) const {
    uint32_t out = v[0];
    for (int l = 1; l < 32; ++l) out = v[l] < out ? v[l] : out;
    return out;
  }
  uint32_t ballot(const PerLane<bool>& v) const {
    uint32_t out = 0;
    for (int l = 0; l < 32; ++l) out |= uint32_t(v[l]) << l;
    return out;
  }
  template <typename T>
  T of(const PerLane<T>& v, int l) const {
    return v[l];
  }
};

KVASIR_CODEC float half_value(uint16_t h) { return f16_to_f32(h); }
KVASIR_CODEC uint16_t nearest_half(float v) { return f32_to_f16(v); }
KVASIR_CODEC float bits_to_float(uint32_t u) { return std::bit_cast<float>(u); }
KVASIR_CODEC uint32_t float_bits(float v) { return std::bit_cast<uint32_t>(v); }
KVASIR_CODEC int nearest_int(float v) { return int(std::nearbyint(v)); }
KVASIR_CODEC int first_bit(uint32_t mask) { return __builtin_ctz(mask); }
KVASIR_CODEC float root(float v) { return std::sqrt(v); }
KVASIR_CODEC double root(double v) { return std::sqrt(v); }
KVASIR_CODEC uint32_t least_halves(uint32_t a, uint32_t b, bool& high, bool& low) {
  high = a >> 16 <= b >> 16;
  low = (a & 0xffff) <= (b & 0xffff);
  return (low ? a & 0xffff : b & 0xffff) | (high ? a & 0xffff0000u : b & 0xffff0000u);
}
KVASIR_CODEC int least_sum(int a, int b, int limit) { return a + b < limit ? a + b : limit; }
KVASIR_CODEC uint32_t load_pair(const uint16_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
KVASIR_CODEC void store_four(uint16_t* p, const uint32_t (&words)[4]) { std::memcpy(p, words, sizeof words); }

#endif

KVASIR_CODEC float held(float v, float low, float high) { return v < low ? low : v > high ? high : v; }

}  // namespace kvasir::cuda
