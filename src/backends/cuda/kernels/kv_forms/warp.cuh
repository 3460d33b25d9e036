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
#define KVASIR_NO_UNROLL _Pragma("unroll 1")
#else
#include <cmath>
#include <cstring>

#include "base/half.h"
#define KVASIR_CODEC inline
#define KVASIR_UNROLL
#define KVASIR_UNROLL_4
#define KVASIR_NO_UNROLL
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
  // The next lane's; the last has its own.
  template <typename T>
  __device__ __forceinline__ PerLane<T> of_next(const PerLane<T>& v) const {
    return {__shfl_down_sync(~0u, v.value, 1)};
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
KVASIR_CODEC float lesser(float a, float b) { return fminf(a, b); }
KVASIR_CODEC float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KVASIR_CODEC void load_floats(const float* p, float (&v)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(p);
  v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
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
  template <typename T>
  PerLane<T> of_next(const PerLane<T>& v) const {
    PerLane<T> out = v;
    for (int l = 0; l < 31; ++l) out[l] = v[l + 1];
    return out;
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
KVASIR_CODEC float lesser(float a, float b) { return b < a ? b : a; }
KVASIR_CODEC float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
KVASIR_CODEC void load_floats(const float* p, float (&v)[4]) { std::memcpy(v, p, sizeof v); }

#endif

KVASIR_CODEC float held(float v, float low, float high) { return v < low ? low : v > high ? high : v; }

}  // namespace kvasir::cuda
