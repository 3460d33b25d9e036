// Any bytes as a GGUF file: opened, every value and tensor touched, read as a model, its graph built. Only kvasir::Error may
// come out.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "decide/geometry.h"
#include "formats/format.h"
#include "gguf/file.h"
#include "gguf/model_config.h"
#include "models/models.h"

namespace {

using kvasir::gguf::File;
using kvasir::gguf::Value;
using kvasir::gguf::ValueType;

template <typename Call>
void attempt(Call call) {
  try {
    call();
  } catch (const kvasir::Error&) {
  }
}

void touch(const Value& value) {
  const uint64_t n = value.count() < 64 ? value.count() : 64;
  for (uint64_t i = 0; i <= n; ++i) {
    attempt([&] { value.integer(i); });
    attempt([&] { value.number(i); });
    attempt([&] { value.boolean(i); });
    attempt([&] { value.string(i); });
  }
}

void touch(const File& file) {
  for (const auto& pair : file.metadata()) touch(pair.value);
  for (const auto& tensor : file.tensors()) {
    const auto* format = kvasir::formats::find(tensor.type);
    if (!format || tensor.data.size() != format->row_bytes(tensor.shape.count())) std::abort();
    float out[256];
    format->decode(tensor.data.data() + tensor.data.size() - format->block_bytes, out, format->block);
    file.drop(tensor);
  }
  attempt([&] { kvasir::models::build_graph(file, kvasir::gguf::read_model_config(file)); });
  attempt([&] { kvasir::decide::read_geometry(file); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int fd = ::memfd_create("gguf", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, data, size, 0) != ssize_t(size)) return 0;
  attempt([] { touch(*File::open(path)); });
  return 0;
}
