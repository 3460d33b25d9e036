// Tags that make a pointer's element type choose the conversion in Vec::load.
#pragma once
#include <cstdint>

namespace kvasir::cpu {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

}  // namespace kvasir::cpu
