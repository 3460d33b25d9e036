// Fields of a JSON object by name and kind; a fault names file and field.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "formats/format.h"

namespace kvasir::decide {

class JsonReader {
 public:
  JsonReader(const nlohmann::json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail(ErrorCode::kBadFile, "{}: is not an object", where_);
  }

  bool has(const char* key) const { return json_.contains(key); }
  const nlohmann::json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(ErrorCode::kBadFile, "{}: field '{}' is missing", where_, key);
    return *found;
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) wrong(key, "text");
    return at(key).get<std::string>();
  }
  int64_t integer(const char* key) const {
    if (!at(key).is_number_integer()) wrong(key, "a whole number");
    return at(key).get<int64_t>();
  }
  int whole(const char* key) const {
    const int64_t n = integer(key);
    if (n < std::numeric_limits<int>::min() || n > std::numeric_limits<int>::max())
      wrong(key, "a 32-bit number");
    return int(n);
  }
  // null stands for a number that is not finite.
  double number(const char* key) const {
    if (at(key).is_null()) return NAN;
    if (!at(key).is_number()) wrong(key, "a number");
    return at(key).get<double>();
  }
  double positive(const char* key) const {
    if (!at(key).is_number() || !(at(key).get<double>() >= 0)) wrong(key, "a number that is 0 or more");
    return at(key).get<double>();
  }
  // 0 where an older file has no such field.
  double positive_or_0(const char* key) const { return has(key) ? positive(key) : 0; }
  bool flag(const char* key) const {
    if (!at(key).is_boolean()) wrong(key, "true or false");
    return at(key).get<bool>();
  }
  DType type(const char* key) const {
    const formats::Format* format = formats::find(std::string_view(text(key)));
    if (!format) fail(ErrorCode::kBadFile, "{}: field '{}' is '{}', no storage type", where_, key, text(key));
    return format->type;
  }
  const nlohmann::json& list(const char* key) const {
    if (!at(key).is_array()) wrong(key, "a list");
    return at(key);
  }
  std::string item(const char* key, size_t i) const { return fmt::format("{}: {}[{}]", where_, key, i); }

 private:
  [[noreturn]] void wrong(const char* key, const char* what) const {
    fail(ErrorCode::kBadFile, "{}: field '{}' is not {}", where_, key, what);
  }
  const nlohmann::json& json_;
  std::string where_;
};

// Throws Error{kBadFile} when `text` is not JSON.
inline nlohmann::json parse_json(std::string_view text, std::string_view name) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) fail(ErrorCode::kBadFile, "{}: is not JSON", name);
  return json;
}

}  // namespace kvasir::decide
