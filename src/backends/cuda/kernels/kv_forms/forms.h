// How keys and values lie on the device: one row of this file a type. A region holds one head's 64 rows of
// one side of a page. Plain types keep rows as they are; the others keep planes, each of all 64 rows, token
// after token:
//   codes   `bits` bits a value, in the order of the values, least significant first
//   high    q5_0: bit 4 of the codes, a word of 32 a block
//   scales  f16 (qjl1_256: bf16), one a block of `block` values, or one a row
//   extra   q4_polar: the 16 residual bytes of a block
// tbq3_tcq keeps its wire blocks whole. Bytes are those of the wire form, in another order.
#pragma once
#include <cstdint>

namespace kvasir::cuda {

enum class KvForm : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ5_0,
  kQ4_0,
  kTbq3_0,
  kTbq4_0,
  kQjl1_256,
  kQ4Polar,
  kTbq3Tcq,
  kTbq2H,
  kTbq3H,
  kTbq4H,
  kTbq2Ht,
  kTbq3Ht,
  kTbq4Ht
};
// One scale a row, and the basis of the whole head.
constexpr bool head_wide(KvForm form) { return form >= KvForm::kTbq2H; }
// Rows are written as f16 first and encoded when their page is full.
constexpr bool open_page(KvForm form) { return form >= KvForm::kQ8_0; }
constexpr bool trellis(KvForm form) { return form >= KvForm::kTbq2Ht; }
// Encoding takes a search, or a projection: a launch of its own, spread over more blocks.
constexpr bool slow_to_encode(KvForm form) {
  return trellis(form) || form == KvForm::kQjl1_256 || form == KvForm::kQ4Polar || form == KvForm::kTbq3Tcq;
}

// As formats::Basis.
enum class KvBasis : uint8_t { kModel, kHeadWide, kBlock32, kBlock128, kSignedBlock128 };
constexpr KvBasis basis_of(KvForm form) {
  if (head_wide(form)) return KvBasis::kHeadWide;
  switch (form) {
    case KvForm::kTbq3_0:
    case KvForm::kTbq4_0:
      return KvBasis::kBlock32;
    case KvForm::kQ4Polar:
      return KvBasis::kBlock128;
    case KvForm::kTbq3Tcq:
      return KvBasis::kSignedBlock128;
    default:
      return KvBasis::kModel;
  }
}

// Bits of a code in the code plane; of plain types those of a value. qjl1_256 has 2 signs a value.
constexpr int code_bits(KvForm form) {
  switch (form) {
    case KvForm::kF32:
      return 32;
    case KvForm::kF16:
    case KvForm::kBf16:
      return 16;
    case KvForm::kQ8_0:
      return 8;
    case KvForm::kQ5_0:
    case KvForm::kQ4_0:
    case KvForm::kTbq4_0:
    case KvForm::kQ4Polar:
    case KvForm::kTbq4H:
    case KvForm::kTbq4Ht:
      return 4;
    case KvForm::kTbq3_0:
    case KvForm::kTbq3Tcq:
    case KvForm::kTbq3H:
    case KvForm::kTbq3Ht:
      return 3;
    default:
      return 2;
  }
}
// Values of a scale; 0: a row has one, or none.
constexpr int scale_block(KvForm form) {
  switch (form) {
    case KvForm::kQ8_0:
    case KvForm::kQ5_0:
    case KvForm::kQ4_0:
    case KvForm::kTbq3_0:
    case KvForm::kTbq4_0:
      return 32;
    case KvForm::kQjl1_256:
    case KvForm::kQ4Polar:
    case KvForm::kTbq3Tcq:
      return 128;
    default:
      return 0;
  }
}
constexpr int scales_of_row(KvForm form, int d) {
  return !open_page(form) ? 0 : scale_block(form) == 0 ? 1 : d / scale_block(form);
}

inline constexpr int kTcqBlockBytes = 52, kTcqStreamAt = 2;
inline constexpr int kRegionRows = 64;

// Bytes of a row in each plane, and where the planes begin.
struct RegionPlanes {
  int codes, high, scales, extra;
  constexpr RegionPlanes(KvForm form, int d)
      : codes(form == KvForm::kTbq3Tcq ? d / 128 * kTcqBlockBytes : d / 8 * code_bits(form)),
        high(form == KvForm::kQ5_0 ? d / 8 : 0),
        scales(form == KvForm::kTbq3Tcq ? 0 : 2 * scales_of_row(form, d)),
        extra(form == KvForm::kQ4Polar ? d / 8 : 0) {}
  constexpr int64_t high_at() const { return int64_t(kRegionRows) * codes; }
  constexpr int64_t scales_at() const { return int64_t(kRegionRows) * (codes + high); }
  constexpr int64_t extra_at() const { return int64_t(kRegionRows) * (codes + high + scales); }
  constexpr int64_t bytes() const { return int64_t(kRegionRows) * (codes + high + scales + extra); }
};
constexpr int64_t region_bytes(KvForm form, int d) { return RegionPlanes(form, d).bytes(); }

// Tables that are data, in device memory: of qjl1_256 the projection [128][256], in f32 and f16; of tbq3_tcq
// the levels by the nine bits of the stream, and as trellis.h has them in whole steps.
struct KvTables {
  const float* projection = nullptr;
  const uint16_t* projection_half = nullptr;
  const float* tcq_level = nullptr;
  const int8_t* tcq_rounded = nullptr;
  float tcq_step = 0;
};

}  // namespace kvasir::cuda
