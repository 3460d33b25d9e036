#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace kvasir {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

namespace {

void need(int ok) {
  if (ok != 1) fail(ErrorCode::kFailed, "libcrypto cannot compute SHA-256");
}

}  // namespace

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  need(context_->md ? EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) : 0);
}
Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  need(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()));
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  need(EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(digest.data()), nullptr));
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (std::byte byte : bytes) hex += {kDigits[unsigned(byte) >> 4], kDigits[unsigned(byte) & 15]};
  return hex;
}

std::string sha256_hex(std::span<const std::byte> bytes) { return to_hex(sha256(bytes)); }

}  // namespace kvasir
