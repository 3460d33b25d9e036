// Names and sizes of GGUF's value types.
#pragma once
#include <cstdint>
#include <string_view>

#include "gguf/file.h"

namespace kvasir::gguf {

constexpr std::string_view type_name(ValueType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return uint32_t(type) < std::size(kNames) ? kNames[uint32_t(type)] : "an unknown type";
}

// Bytes of one value; 0 for strings and arrays, whose size varies, and for unknown types.
constexpr uint64_t fixed_size(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64:
      return 8;
    default:
      return 0;
  }
}

constexpr uint32_t kMagic = 0x46554747;  // "GGUF", little-endian
constexpr uint64_t kDefaultAlignment = 32, kMinAlignment = 8, kMaxAlignment = 1 << 20;

}  // namespace kvasir::gguf
