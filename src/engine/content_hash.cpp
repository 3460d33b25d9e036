#include "engine/content_hash.h"

#include <algorithm>
#include <vector>

#include "base/sha256.h"
#include "base/thread_pool.h"

namespace kvasir::engine {
namespace {

constexpr size_t kPiece = size_t(4) << 20;

struct Piece {
  const gguf::TensorInfo* tensor;
  std::span<const std::byte> bytes;
};

std::vector<Piece> pieces_of(const gguf::File& file) {
  std::vector<Piece> pieces;
  for (const gguf::TensorInfo& tensor : file.tensors())
    for (size_t at = 0; at < tensor.data.size(); at += kPiece)
      pieces.push_back({&tensor, tensor.data.subspan(at, std::min(kPiece, tensor.data.size() - at))});
  return pieces;
}

// Weights were copied into the layout of the kernels at load: their source need not stay in memory.
std::vector<Sha256Digest> digests_of(const gguf::File& file, const std::vector<Piece>& pieces,
                                     int n_threads) {
  std::vector<Sha256Digest> digests(pieces.size());
  TaskCounter next;
  ThreadPool(n_threads).run([&](int) {
    for (int64_t i = next.take(); i < int64_t(pieces.size()); i = next.take()) {
      digests[size_t(i)] = sha256(pieces[size_t(i)].bytes);
      gguf::TensorInfo part = *pieces[size_t(i)].tensor;
      part.data = pieces[size_t(i)].bytes;
      file.drop(part);
    }
  });
  return digests;
}

class Hash {
 public:
  void text(std::string_view text) {
    number(text.size());
    hash_.update(std::as_bytes(std::span(text)));
  }
  void number(uint64_t value) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = std::byte(value >> (8 * i));
    hash_.update(bytes);
  }
  void bytes(std::span<const std::byte> bytes) {
    number(bytes.size());
    hash_.update(bytes);
  }
  std::string hex() { return to_hex(hash_.finish()); }

 private:
  Sha256 hash_;
};

}  // namespace

std::string content_hash(const gguf::File& file, int n_threads) {
  const std::vector<Piece> pieces = pieces_of(file);
  const std::vector<Sha256Digest> digests = digests_of(file, pieces, n_threads);
  Hash hash;
  for (const gguf::KeyValue& entry : file.metadata()) {
    if (entry.key.starts_with("split.")) continue;
    hash.text(entry.key);
    hash.number(uint64_t(entry.value.type()));
    hash.number(uint64_t(entry.value.element_type()));
    hash.bytes(entry.value.raw());
  }
  for (const gguf::TensorInfo& tensor : file.tensors()) {
    hash.text(tensor.name);
    hash.number(uint64_t(tensor.type));
    for (int64_t extent : tensor.shape.ne) hash.number(uint64_t(extent));
    hash.number(tensor.data.size());
  }
  for (const Sha256Digest& digest : digests) hash.bytes(digest);
  return hash.hex();
}

}  // namespace kvasir::engine
