// Kvasir for C++: owning handles over kvasir.h. Failures become kvasir::api::Failure. Header only.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/kvasir.h"

namespace kvasir::api {

class Failure : public std::runtime_error {
 public:
  explicit Failure(kvasir_status status) : std::runtime_error(kvasir_last_error()), status_(status) {}
  kvasir_status status() const { return status_; }

 private:
  kvasir_status status_;
};

inline void check(kvasir_status status) {
  if (status != KVASIR_OK) throw Failure(status);
}

class Model {
 public:
  explicit Model(const std::string& path, kvasir_model_options options = kvasir_model_options_default()) {
    kvasir_model* model = nullptr;
    check(kvasir_model_load(path.c_str(), &options, &model));
    handle_.reset(model);
  }

  kvasir_geometry geometry() const {
    kvasir_geometry geometry{};
    geometry.struct_size = sizeof geometry;
    check(kvasir_model_geometry(handle_.get(), &geometry));
    return geometry;
  }

  std::vector<int32_t> tokenize(std::string_view text, bool add_bos = true, bool parse_special = true) const {
    std::vector<int32_t> ids(text.size() + 2);  // a token is at least one byte
    size_t n = 0;
    check(kvasir_tokenize(handle_.get(), text.data(), text.size(), add_bos, parse_special, ids.data(), ids.size(), &n));
    ids.resize(n);
    return ids;
  }

  std::string detokenize(const std::vector<int32_t>& ids) const {
    size_t n = 0;
    kvasir_detokenize(handle_.get(), ids.data(), ids.size(), nullptr, 0, &n);
    std::string text(n, '\0');
    check(kvasir_detokenize(handle_.get(), ids.data(), ids.size(), text.data(), text.size(), &n));
    return text;
  }

  kvasir_model* get() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(kvasir_model* model) const { kvasir_model_free(model); }
  };
  std::unique_ptr<kvasir_model, Free> handle_;
};

class Session {
 public:
  // The session keeps the model's weights alive by itself.
  explicit Session(const Model& model, kvasir_session_options options = kvasir_session_options_default()) {
    kvasir_session* session = nullptr;
    check(kvasir_session_create(model.get(), &options, &session));
    handle_.reset(session);
  }

  // on_text returns false to stop.
  using OnText = std::function<bool(std::string_view)>;
  kvasir_generate_result generate(const std::vector<int32_t>& prompt, const OnText& on_text,
                                  kvasir_generate_options options = kvasir_generate_options_default()) {
    kvasir_generate_result result{};
    result.struct_size = sizeof result;
    const auto forward = [](const char* text, size_t length, void* user) -> int {
      return (*static_cast<const OnText*>(user))({text, length}) ? 0 : 1;
    };
    check(kvasir_generate(handle_.get(), prompt.data(), prompt.size(), &options, forward,
                          const_cast<OnText*>(&on_text), &result));
    return result;
  }

  void cancel() { kvasir_cancel(handle_.get()); }
  void clear() { kvasir_session_clear(handle_.get()); }
  int size() const { return kvasir_session_size(handle_.get()); }

  std::vector<int32_t> tokens() const {
    std::vector<int32_t> ids(static_cast<size_t>(size()));
    size_t n = 0;
    check(kvasir_session_tokens(handle_.get(), ids.data(), ids.size(), &n));
    return ids;
  }

  void save(const std::string& path) const { check(kvasir_session_save(handle_.get(), path.c_str())); }
  void load(const std::string& path) { check(kvasir_session_load(handle_.get(), path.c_str())); }
  std::vector<std::byte> save() const {
    size_t n = 0;
    kvasir_session_save_memory(handle_.get(), nullptr, 0, &n);  // asks for the size
    std::vector<std::byte> bytes(n);
    check(kvasir_session_save_memory(handle_.get(), bytes.data(), bytes.size(), &n));
    return bytes;
  }
  void load(const std::vector<std::byte>& bytes) {
    check(kvasir_session_load_memory(handle_.get(), bytes.data(), bytes.size()));
  }

  kvasir_session* get() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(kvasir_session* session) const { kvasir_session_free(session); }
  };
  std::unique_ptr<kvasir_session, Free> handle_;
};

}  // namespace kvasir::api
