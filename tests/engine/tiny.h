// The embedded tiny-gemma4 and its reference outputs.
#pragma once
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model.h"
#include "engine/session.h"
#include "formats/format.h"

namespace kvasir::test {

inline std::string model_path(const std::string& name) { return std::string(KVASIR_SOURCE_DIR) + "/models/" + name; }

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Models are shared by the tests of one program: loading is not what they measure.
inline std::shared_ptr<engine::Model> tiny(const std::string& file = "tiny-gemma4-f16.gguf", int n_threads = 2) {
  static std::map<std::pair<std::string, int>, std::shared_ptr<engine::Model>> loaded;
  auto& model = loaded[{file, n_threads}];
  if (!model) {
    engine::LoadOptions options;
    options.path = model_path(file);
    options.n_threads = n_threads;
    model = engine::Model::load(options);
  }
  return model;
}

class Reference {
 public:
  Reference() : json_(nlohmann::json::parse(read_file(model_path("reference.json")))), blob_(read_file(model_path("reference.bin"))) {}
  const nlohmann::json& json() const { return json_; }
  template <typename T>
  std::vector<T> array(const std::string& name) const {
    const auto& a = json_["arrays"][name];
    size_t n = 1;
    for (const auto& d : a["shape"]) n *= d.get<size_t>();
    std::vector<T> out(n);
    std::memcpy(out.data(), blob_.data() + a["offset"].get<size_t>(), n * sizeof(T));
    return out;
  }

 private:
  nlohmann::json json_;
  std::string blob_;
};

inline const Reference& reference() {
  static const Reference r;
  return r;
}

inline engine::SessionOptions session_options(DType kv = DType::f16, int n_ctx = 2048, int n_ubatch = 512) {
  engine::SessionOptions o;
  o.n_ctx = n_ctx;
  o.n_ubatch = n_ubatch;
  o.kv.k = kv;
  o.kv.v = formats::require(kv).has_role(formats::kValues) ? kv : DType::f16;
  return o;
}

}  // namespace kvasir::test
