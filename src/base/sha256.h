// SHA-256 through libcrypto.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace kvasir {

// Lower-case hex digest.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace kvasir
