// Storage types that hold keys or values on CUDA, and their forms.
#pragma once
#include <optional>

#include "backends/cuda/kernels/kv_forms/forms.h"
#include "tensor/dtype.h"

namespace kvasir::cuda {

// Nothing for a type that cannot hold keys or values here.
inline std::optional<KvForm> kv_form(DType type) {
  switch (type) {
    case DType::f32:
      return KvForm::kF32;
    case DType::f16:
      return KvForm::kF16;
    case DType::bf16:
      return KvForm::kBf16;
    case DType::q8_0:
      return KvForm::kQ8_0;
    case DType::q5_0:
      return KvForm::kQ5_0;
    case DType::q4_0:
      return KvForm::kQ4_0;
    case DType::tbq3_0:
      return KvForm::kTbq3_0;
    case DType::tbq4_0:
      return KvForm::kTbq4_0;
    case DType::qjl1_256:
      return KvForm::kQjl1_256;
    case DType::q4_polar:
      return KvForm::kQ4Polar;
    case DType::tbq3_tcq:
      return KvForm::kTbq3Tcq;
    case DType::tbq2_h:
      return KvForm::kTbq2H;
    case DType::tbq3_h:
      return KvForm::kTbq3H;
    case DType::tbq4_h:
      return KvForm::kTbq4H;
    case DType::tbq2_ht:
      return KvForm::kTbq2Ht;
    case DType::tbq3_ht:
      return KvForm::kTbq3Ht;
    case DType::tbq4_ht:
      return KvForm::kTbq4Ht;
    default:
      return std::nullopt;
  }
}

}  // namespace kvasir::cuda
