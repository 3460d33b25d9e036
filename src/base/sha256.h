// SHA-256 through libcrypto.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace kvasir {

using Sha256Digest = std::array<std::byte, 32>;

// A digest of bytes that come in pieces. Throws Error{kFailed} when libcrypto does.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(std::span<const std::byte> bytes);
  // Of everything given; once.
  Sha256Digest finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256Digest sha256(std::span<const std::byte> bytes);
// Lower-case hex digits.
std::string to_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace kvasir
