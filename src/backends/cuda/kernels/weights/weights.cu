#include "backends/cuda/kernels/choose/choose.h"
#include "backends/cuda/kernels/weights/decode.cuh"
#include "backends/cuda/kernels/weights/weights.h"

namespace kvasir::cuda {

WeightForm weight_form(DType type) {
  switch (type) {
    case DType::f32:
      return WeightForm::kF32;
    case DType::f16:
      return WeightForm::kF16;
    case DType::bf16:
      return WeightForm::kBf16;
    case DType::q8_0:
      return WeightForm::kQ8;
    case DType::q4_0:
      return WeightForm::kQ4;
    case DType::q4_1:
      return WeightForm::kQ4M;
    case DType::q5_0:
      return WeightForm::kQ5;
    case DType::q5_1:
      return WeightForm::kQ5M;
    case DType::q4_k:
      return WeightForm::kQ4K;
    case DType::q5_k:
      return WeightForm::kQ5K;
    case DType::q6_k:
      return WeightForm::kQ6K;
    case DType::q2_k:
      return WeightForm::kQ2K;
    case DType::q3_k:
      return WeightForm::kQ3K;
    case DType::iq4_nl:
      return WeightForm::kIq4Nl;
    case DType::iq4_xs:
      return WeightForm::kIq4Xs;
    default:
      return WeightForm::kNone;
  }
}

PlaneBytes plane_bytes(WeightForm form, int64_t n_in, int64_t n_out) {
  const GroupBytes g = group_bytes(form);
  const int64_t groups = n_in * n_out / 32;
  return {groups * g.codes, groups * g.high, int64_t(double(groups) * g.aux),
          int64_t(double(groups) * g.aux2)};
}

namespace {

__device__ void copy_bytes(uint8_t* to, const uint8_t* from, int n) {
  for (int i = 0; i < n; ++i) to[i] = from[i];
}

// Codes of 32 values, 0..63, into the planes of group `group`.
__device__ void store_codes(const MatrixView& to, int64_t group, const uint8_t* code) {
  uint8_t* codes = const_cast<uint8_t*>(to.codes) + group * 16;
  for (int j = 0; j < 16; ++j) codes[j] = uint8_t((code[j] & 15) | ((code[16 + j] & 15) << 4));
  if (!to.high) return;
  const int bits = to.form == WeightForm::kQ6K ? 2 : 1;
  uint32_t words[2] = {0, 0};
  for (int v = 0; v < 32; ++v) {
    const int word = v / 4;
    words[bits == 2 ? word / 4 : 0] |= uint32_t(code[v] >> 4)
                                       << (8 * (v % 4) + (bits == 2 ? 2 * (word % 4) : word));
  }
  uint32_t* high = reinterpret_cast<uint32_t*>(const_cast<uint8_t*>(to.high)) + group * bits;
  for (int i = 0; i < bits; ++i) high[i] = words[i];
}

// The low two bits of 32 codes, and the third where the form has a plane for it.
__device__ void store_two_bits(const MatrixView& to, int64_t group, const uint8_t* code) {
  uint32_t words[2] = {0, 0}, third = 0;
  for (int v = 0; v < 32; ++v) {
    const int word = v / 4;
    words[word / 4] |= uint32_t(code[v] & 3) << (8 * (v % 4) + 2 * (word % 4));
    third |= uint32_t(code[v] >> 2) << (8 * (v % 4) + word);
  }
  uint32_t* codes = reinterpret_cast<uint32_t*>(const_cast<uint8_t*>(to.codes)) + group * 2;
  codes[0] = words[0];
  codes[1] = words[1];
  if (to.high) reinterpret_cast<uint32_t*>(const_cast<uint8_t*>(to.high))[group] = third;
}

// Scale of sub-block j of q3_k's 12 bytes, in -32..31.
__device__ uint8_t q3_k_scale(const uint8_t* sc, int j) {
  const int low = (sc[j % 8] >> (4 * (j / 8))) & 15, high = (sc[8 + j % 4] >> (2 * (j / 4))) & 3;
  return uint8_t((low | (high << 4)) - 32);
}

// q2_k, q3_k and iq4_xs: group j of a block.
__device__ void repack_small(DType type, const uint8_t* raw, const MatrixView& to, int64_t i, int64_t group) {
  const int j = int(i % 8), half = j / 4, plane = j % 4;
  uint8_t* aux = const_cast<uint8_t*>(to.aux);
  uint8_t* aux2 = const_cast<uint8_t*>(to.aux2);
  uint8_t code[32];
  if (type == DType::iq4_xs) {
    const uint8_t* b = raw + i / 8 * 136;
    const int low = (b[4 + j / 2] >> (4 * (j % 2))) & 15, high = (b[2 + j / 4] >> (2 * (j % 4))) & 3;
    aux[group] = uint8_t((low | (high << 4)) - 32);
    if (j == 0) copy_bytes(aux2 + group / 8 * 2, b, 2);
    return copy_bytes(const_cast<uint8_t*>(to.codes) + group * 16, b + 8 + 16 * j, 16);
  }
  const bool three = type == DType::q3_k;
  const uint8_t* b = raw + i / 8 * (three ? 110 : 84);
  const uint8_t* qs = b + (three ? 32 : 16) + 32 * half;
  for (int v = 0; v < 32; ++v) {
    code[v] = (qs[v] >> (2 * plane)) & 3;
    if (three) code[v] |= uint8_t(((b[v] >> (4 * half + plane)) & 1) << 2);
  }
  for (int s = 0; s < 2; ++s) aux[2 * group + s] = three ? q3_k_scale(b + 96, 2 * j + s) : b[2 * j + s];
  if (j == 0) copy_bytes(aux2 + group / 8 * (three ? 2 : 4), b + (three ? 108 : 80), three ? 2 : 4);
  store_two_bits(to, group, code);
}

// One thread a 32-value group.
__global__ void repack_kernel(DType type, const uint8_t* raw, MatrixView to, int64_t first_group,
                              int64_t n_groups) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n_groups) return;
  const int64_t group = first_group + i;
  uint8_t* codes = const_cast<uint8_t*>(to.codes);
  uint8_t* aux = const_cast<uint8_t*>(to.aux);
  uint8_t code[32];
  const int j = int(i % 8);
  switch (type) {
    case DType::q8_0: {
      const uint8_t* b = raw + i * 34;
      copy_bytes(aux + group * 2, b, 2);
      copy_bytes(codes + group * 32, b + 2, 32);
      return;
    }
    case DType::q2_k:
    case DType::q3_k:
    case DType::iq4_xs:
      return repack_small(type, raw, to, i, group);
    case DType::iq4_nl:
    case DType::q4_0:
    case DType::q4_1: {
      const int scales = type == DType::q4_1 ? 4 : 2;
      const uint8_t* b = raw + i * (16 + scales);
      copy_bytes(aux + group * scales, b, scales);
      copy_bytes(codes + group * 16, b + scales, 16);
      return;
    }
    case DType::q5_0:
    case DType::q5_1: {
      const int scales = type == DType::q5_0 ? 2 : 4;
      const uint8_t* b = raw + i * (20 + scales);
      copy_bytes(aux + group * scales, b, scales);
      for (int v = 0; v < 32; ++v)
        code[v] = uint8_t(((b[scales + 4 + v % 16] >> (v >= 16 ? 4 : 0)) & 15) |
                          (((b[scales + v / 8] >> (v % 8)) & 1) << 4));
      break;
    }
    case DType::q4_k:
    case DType::q5_k: {
      const bool five = type == DType::q5_k;
      const uint8_t* b = raw + i / 8 * (five ? 176 : 144);
      const uint8_t* qs = b + (five ? 48 : 16);
      if (j == 0) copy_bytes(aux + group / 8 * 16, b, 16);
      for (int v = 0; v < 32; ++v) {
        code[v] = (qs[32 * (j / 2) + v] >> (4 * (j % 2))) & 15;
        if (five) code[v] |= uint8_t(((b[16 + v] >> j) & 1) << 4);
      }
      break;
    }
    case DType::q6_k: {
      const uint8_t* b = raw + i / 8 * 210;
      const int half = j / 4, plane = j % 4;
      copy_bytes(aux + group * 2, b + 192 + 2 * j, 2);
      if (j == 0) copy_bytes(const_cast<uint8_t*>(to.aux2) + group / 8 * 2, b + 208, 2);
      for (int v = 0; v < 32; ++v) {
        const int low = (b[64 * half + 32 * (plane % 2) + v] >> (4 * (plane / 2))) & 15;
        code[v] = uint8_t(low | (((b[128 + 32 * half + v] >> (2 * plane)) & 3) << 4));
      }
      break;
    }
    default:  // repack() lets no other pass
      __trap();
  }
  store_codes(to, group, code);
}

__global__ void expand_kernel(MatrixView w, int first, int64_t n, __half* to) {
  let_next_start();
  wait_for_inputs();
  // Eight values a thread, so that stores are 16 bytes wide.
  const int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  if (at >= n) return;
  const int64_t row = first + at / w.n_in;
  const int i = int(at % w.n_in);
  __half out[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) out[k] = __float2half_rn(weight_at(w, row, i + k));
  *reinterpret_cast<int4*>(to + at) = *reinterpret_cast<const int4*>(out);
}

__device__ __forceinline__ int token_of(const StepView& step, int row) {
  const int token = step.rows[row].token;
  return token == graph::kChosenToken ? key_token(*step.chosen) : token;
}

__global__ void embed_kernel(MatrixView table, StepView step, float scale, float* out) {
  let_next_start();
  wait_for_inputs();
  const int r = blockIdx.y, i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < table.n_in) out[int64_t(r) * table.n_in + i] = weight_at(table, token_of(step, r), i) * scale;
}

__global__ void per_layer_kernel(PerLayerArgs a, StepView step) {
  __shared__ float scratch[33];
  let_next_start();
  wait_for_inputs();
  const int r = blockIdx.y, begin = int(blockIdx.x) * a.group;
  const int token = token_of(step, a.output_rows ? step.out_rows[r] : r);
  float* x = a.x + int64_t(r) * a.width + begin;
  float sum = 0;
  for (int i = int(threadIdx.x); i < a.group; i += int(blockDim.x)) {
    const float v = x[i] * a.scale;
    sum += v * v;
  }
  const float inverse = 1.0f / sqrtf(block_sum(sum, scratch) / float(a.group) + a.eps);
  const float root_half = 0.70710678f, token_scale = sqrtf(float(a.group)) * root_half;
  for (int i = int(threadIdx.x); i < a.group; i += int(blockDim.x))
    x[i] = x[i] * a.scale * inverse * a.norm[i] * root_half +
           weight_at(a.table, token, a.offset + begin + i) * token_scale;
}

}  // namespace

void repack(const Launch& how, DType type, const uint8_t* raw, const MatrixView& to, int first, int n) {
  if (to.form == WeightForm::kNone || weight_form(type) != to.form)
    refuse_form("planes of a matrix", to.form);
  const GroupBytes g = group_bytes(to.form);
  const int64_t first_group = int64_t(first) * to.n_in / 32, groups = int64_t(n) * to.n_in / 32;
  if (g.codes >= 64) {  // stored as it is
    const int64_t row = int64_t(to.n_in) * g.codes / 32;
    copy_on_device(how, const_cast<uint8_t*>(to.codes) + first * row, raw, size_t(n) * size_t(row));
    return;
  }
  launch(how, dim3(unsigned((groups + 127) / 128)), dim3(128), 0, repack_kernel, type, raw, to, first_group,
         groups);
}

void expand_half(const Launch& how, const MatrixView& w, int first, int n, uint16_t* to) {
  const int64_t values = int64_t(n) * w.n_in;
  launch(how, dim3(unsigned((values / 8 + 255) / 256)), dim3(256), 0, expand_kernel, w, first, values,
         reinterpret_cast<__half*>(to));
}

void embed_rows(const Launch& how, const MatrixView& table, const StepView& step, int n_rows, float scale,
                float* out) {
  launch(how, dim3(unsigned(table.n_in + 255) / 256, unsigned(n_rows)), dim3(256), 0, embed_kernel, table,
         step, scale, out);
}

void finish_per_layer(const Launch& how, const PerLayerArgs& args, const StepView& step, int n_rows) {
  launch(how, dim3(unsigned(args.width / args.group), unsigned(n_rows)),
         dim3(unsigned(args.group >= 256 ? 256 : 64)), 0, per_layer_kernel, args, step);
}

}  // namespace kvasir::cuda
