// Any bytes as a saved state, and any text as the head of one: only kvasir::Error may come out. The first
// byte says which, and is not part of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "engine/saved_state.h"
#include "engine/state_header.h"

namespace {

using namespace kvasir;

class Bytes final : public engine::StateSource {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> out) override {
    if (offset > size_ || out.size() > size_ - offset)
      __builtin_trap();  // the reader promises to stay inside
    if (!out.empty()) std::memcpy(out.data(), data_ + offset, out.size());
  }

 private:
  std::string name_ = "fuzz.state";
  const uint8_t* data_;
  size_t size_;
};

const engine::StateInfo& mine() {
  static const engine::StateInfo info = [] {
    engine::StateInfo made;
    made.model_hash = "0123456789abcdef";
    made.model_name = "fuzz";
    made.specs = {
        {.layer = 0, .head_dim = 64, .n_kv = 1, .window = 128, .k_type = DType::q8_0, .v_type = DType::f16},
        {.layer = 1,
         .head_dim = 128,
         .n_kv = 2,
         .k_type = DType::tbq4_h,
         .v_type = DType::tbq3_ht,
         .exact_first = 1}};
    made.n_tokens = 300;
    return made;
  }();
  return info;
}

template <typename Call>
void attempt(Call call) {
  try {
    call();
  } catch (const Error&) {
  }
}

constexpr int kContext = 4096;

void read_head(std::string_view text) {
  attempt([&] { engine::read_cache_types(text, mine(), "fuzz.state"); });
  attempt([&] {
    const engine::StateInfo info = engine::read_header(text, mine(), kContext, "fuzz.state");
    if (info.n_tokens > kContext) __builtin_trap();
    engine::state_records(info);
  });
}

void read_state(const uint8_t* data, size_t size) {
  Bytes source(data, size);
  attempt([&] { engine::state_caches(source, mine()); });
  attempt([&] {
    engine::StateReader reader(source, mine(), kContext);
    for (const engine::StateRecord& record : reader.records()) reader.read(record);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (data[0] == 'h')
    read_head({reinterpret_cast<const char*>(data) + 1, size - 1});
  else
    read_state(data + 1, size - 1);
  return 0;
}
