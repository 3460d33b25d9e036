#include "verify/fixtures.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/basis.h"
#include "formats/q4_polar.h"
#include "formats/qjl1_256.h"
#include "formats/tbq3_tcq.h"
#include "formats/tbq_0.h"

namespace kvasir::verify {
namespace {

namespace f = formats;
using Json = nlohmann::json;
using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr int kHead = 128;

// Fields of one object of a file, each fault named.
class Fields {
 public:
  Fields(const std::string& path, const Json& json, std::string where = "")
      : path_(path), json_(json), where_(std::move(where)) {}

  [[noreturn]] void bad(const std::string& field, const std::string& what) const {
    fail(ErrorCode::kBadFile, "{}: field {}{}: {}", path_, where_, field, what);
  }
  const Json& at(const std::string& field) const {
    const auto it = json_.find(field);
    if (it == json_.end()) bad(field, "missing");
    return *it;
  }
  bool has(const std::string& field) const { return json_.contains(field); }
  int64_t integer(const std::string& field, int64_t low, int64_t high) const {
    const Json& value = at(field);
    if (!value.is_number_integer()) bad(field, "must be an integer");
    const auto n = value.get<int64_t>();
    if (n < low || n > high)
      bad(field, low == high ? fmt::format("is {}; must be {}", n, low)
                             : fmt::format("is {}; must be {} to {}", n, low, high));
    return n;
  }
  Floats floats(const std::string& field, size_t n) const {
    Floats out;
    for (const Json& value : array(field, n)) {
      if (!value.is_number()) bad(field, fmt::format("element {} is not a number", out.size()));
      out.push_back(value.get<float>());
      if (!std::isfinite(out.back())) bad(field, fmt::format("element {} is not finite", out.size() - 1));
    }
    return out;
  }
  Bytes bytes(const std::string& field, size_t n) const {
    Bytes out;
    for (const Json& value : array(field, n)) {
      if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > 255)
        bad(field, fmt::format("element {} is not a byte", out.size()));
      out.push_back(std::byte(value.get<int>()));
    }
    return out;
  }
  std::string text(const std::string& field) const {
    if (!at(field).is_string()) bad(field, "must be a string");
    return at(field).get<std::string>();
  }
  Fields element(const std::string& field, size_t i) const {
    return {path_, at(field)[i], fmt::format("{}{}[{}].", where_, field, i)};
  }
  size_t count(const std::string& field) const {
    if (!at(field).is_array() || at(field).empty()) bad(field, "must be a list that is not empty");
    for (const Json& element : at(field))
      if (!element.is_object()) bad(field, "must be a list of objects");
    return at(field).size();
  }
  const std::string& path() const { return path_; }

 private:
  const Json& array(const std::string& field, size_t n) const {
    const Json& value = at(field);
    if (!value.is_array()) bad(field, "must be a list");
    if (value.size() != n) bad(field, fmt::format("has {} elements; {} are needed", value.size(), n));
    return value;
  }
  std::string path_;
  const Json& json_;
  std::string where_;
};

template <typename Block>
Block block_at(const Bytes& bytes, size_t i) {
  Block block;
  std::memcpy(&block, bytes.data() + i * sizeof block, sizeof block);
  return block;
}

// The older 14 bytes of turbo3, which only these files have: f16 norm, 32 low pairs of bits, 32 third bits.
// Rotated.
void read_legacy_turbo3(const std::byte* p, float* out) {
  constexpr float kLevels[4] = {0.021460f, 0.065717f, 0.117832f, 0.190685f};
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  const float norm = f16_to_f32(bits);
  for (int j = 0; j < 32; ++j) {
    const int low = std::to_integer<int>(p[2 + j / 4]) >> (2 * (j % 4)) & 3;
    const int code = low | (std::to_integer<int>(p[10 + j / 8]) >> (j % 8) & 1) << 2;
    out[j] = norm * (code < 4 ? -kLevels[3 - code] : kLevels[code - 4]);
  }
}

double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double(a[i]) * b[i];
  return sum;
}

double qjl_score(const float* sketch, const f::BlockQjl1_256& block) {
  double sum = 0;
  for (int j = 0; j < f::kSketch; ++j) sum += block.signs[j / 8] >> (j % 8) & 1 ? sketch[j] : -sketch[j];
  return double(f::kSketchScale) * bf16_to_f32(block.norm) * sum;
}

void add(FixtureResult& result, const std::vector<double>& got, const Floats& expected) {
  double largest = 0;
  for (const float e : expected) largest = std::max(largest, std::fabs(double(e)));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double off = std::fabs(got[i] - expected[i]);
    ++result.total;
    result.passed += off <= kFixtureTolerance;
    result.max_diff = std::max(result.max_diff, std::isfinite(off) ? off : HUGE_VAL);
    if (largest > 0) result.max_relative = std::max(result.max_relative, off / largest);
  }
}

// turbo3, turbo4, turbo3_tcq: rows stay rotated and q is taken as it is.
void turbo(const Fields& file, const std::string& kernel, const f::TcqTable* table, FixtureResult& result) {
  const bool tcq = kernel == "turbo3_tcq";
  if (tcq && !table)
    fail(ErrorCode::kBadFile,
         "{}: field kernel: turbo3_tcq has a table of its own; give it with --tcq-table FILE", file.path());
  const int n_kv = int(file.integer("n_kv", 1, 1 << 20));
  const int bytes = tcq ? 52 : kernel == "turbo3" ? 14 : 18, per_key = tcq ? 1 : 4;
  file.integer("head_dim", kHead, kHead);
  file.integer("block_bytes", bytes, bytes);
  file.integer("blocks_per_kv", per_key, per_key);
  const Floats q = file.floats("q", kHead);
  const Bytes blocks = file.bytes("k_blocks", size_t(n_kv) * size_t(per_key) * size_t(bytes));
  std::vector<double> got;
  for (size_t key = 0; key < size_t(n_kv); ++key) {
    float row[kHead];
    for (size_t b = 0; b < size_t(per_key); ++b) {
      const size_t i = key * size_t(per_key) + b;
      if (tcq)
        f::decode_tcq(*table, block_at<f::BlockTbq3Tcq>(blocks, i), row);
      else if (bytes == 18)
        f::decode_block(block_at<f::BlockTbq4_0>(blocks, i), row + 32 * b);
      else
        read_legacy_turbo3(blocks.data() + i * 14, row + 32 * b);
    }
    got.push_back(dot(q.data(), row, kHead));
  }
  add(result, got, file.floats("expected_scores", size_t(n_kv)));
}

void qjl(const Fields& file, FixtureResult& result) {
  file.integer("head_dim", kHead, kHead);
  file.integer("proj_dim", f::kSketch, f::kSketch);
  file.integer("block_bytes", 34, 34);
  const auto heads = size_t(file.integer("n_heads", 1, 1024)),
             kv = size_t(file.integer("n_kv_heads", 1, 1024)),
             n = size_t(file.integer("n_tokens", 1, 1 << 20));
  if (heads % kv != 0)
    file.bad("n_heads", fmt::format("is {}; must be a multiple of n_kv_heads, {}", heads, kv));
  const Floats q = file.floats("q_sketch", heads * f::kSketch);
  const Bytes k = file.bytes("k_blocks", kv * n * 34);
  std::vector<double> got;
  for (size_t h = 0; h < heads; ++h)
    for (size_t t = 0; t < n; ++t)
      got.push_back(qjl_score(&q[h * f::kSketch], block_at<f::BlockQjl1_256>(k, h / (heads / kv) * n + t)));
  add(result, got, file.floats("expected_scores", heads * n));
}

// The score of a row with a query, or (`transformed`) with the Hadamard transform of one.
double polar_score(const f::BlockQ4Polar& block, bool residual, const Floats& q, bool transformed) {
  float row[kHead];
  f::decode_polar(block, residual, row);
  if (transformed) return dot(q.data(), row, kHead) * double(f::kInverseRoot128);
  f::from_basis(f::Basis::kBlock128, f::kKeys, row, row, kHead);
  return dot(q.data(), row, kHead);
}

void polar(const Fields& file, FixtureResult& result) {
  file.integer("head_dim", kHead, kHead);
  file.integer("block_bytes", 82, 82);
  const auto n = size_t(file.integer("n_rows", 1, 1 << 20));
  const Floats q = file.floats("q", kHead);
  const auto rows = [&](const std::string& blocks, bool residual, const Floats& query, bool transformed,
                        const std::string& expected) {
    const Bytes k = file.bytes(blocks, n * 82);
    std::vector<double> got;
    for (size_t i = 0; i < n; ++i)
      got.push_back(polar_score(block_at<f::BlockQ4Polar>(k, i), residual, query, transformed));
    add(result, got, file.floats(expected, n));
  };
  if (!file.has("hq"))
    return rows("k_blocks", file.integer("use_qjl", 0, 1) != 0, q, false, "expected_scores");
  result.kernel = "polar_preht";
  const Floats hq = file.floats("hq", kHead);
  if (file.has("hadamard_inv_scale") && file.at("hadamard_inv_scale") != 0.0078125)
    file.bad("hadamard_inv_scale", "must be 0.0078125 (1 / 128)");
  rows("k_blocks", false, hq, true, "expected_scores");
  rows("k_blocks_qjl", true, hq, true, "expected_scores_qjl");
}

void fused_case(const Fields& at, bool polar_values, bool residual, double sm_scale, FixtureResult& result) {
  const auto heads = size_t(at.integer("n_heads", 1, 1024)), kv = size_t(at.integer("n_kv_heads", 1, 1024)),
             n = size_t(at.integer("n_kv", 1, 1 << 20));
  if (heads % kv != 0)
    at.bad("n_heads", fmt::format("is {}; must be a multiple of n_kv_heads, {}", heads, kv));
  const bool causal = at.has("causal") && at.integer("causal", 0, 1) != 0;
  const size_t seen = causal ? std::min(n, size_t(at.integer("q_pos_base", 0, 1 << 20)) + 1) : n;
  const Floats q = at.floats("q_sketch", heads * f::kSketch);
  const Bytes k = at.bytes("k_blocks", kv * n * 34),
              v = at.bytes("v_blocks", kv * n * (polar_values ? 82 : 56));
  std::vector<double> got;
  for (size_t h = 0; h < heads; ++h) {
    const size_t first = h / (heads / kv) * n;
    std::vector<double> score(seen), out(kHead);
    for (size_t t = 0; t < seen; ++t)
      score[t] = sm_scale * qjl_score(&q[h * f::kSketch], block_at<f::BlockQjl1_256>(k, first + t));
    const double top = *std::max_element(score.begin(), score.end());
    double sum = 0;
    for (size_t t = 0; t < seen; ++t) {
      float row[kHead];
      if (polar_values)
        f::decode_polar(block_at<f::BlockQ4Polar>(v, first + t), residual, row);
      else
        for (size_t b = 0; b < 4; ++b)
          f::decode_block(block_at<f::BlockTbq3_0>(v, (first + t) * 4 + b), row + 32 * b);
      f::from_basis(polar_values ? f::Basis::kBlock128 : f::Basis::kBlock32, f::kValues, row, row, kHead);
      const double weight = std::exp(score[t] - top);
      sum += weight;
      for (size_t i = 0; i < kHead; ++i) out[i] += weight * row[i];
    }
    for (const double x : out) got.push_back(x / sum);
  }
  add(result, got, at.floats("expected_out", heads * kHead));
}

void fused(const Fields& file, bool polar_values, FixtureResult& result) {
  file.integer("head_dim", kHead, kHead);
  file.integer("proj_dim", f::kSketch, f::kSketch);
  file.integer("k_block_bytes", 34, 34);
  file.integer("v_block_bytes", polar_values ? 82 : 14, polar_values ? 82 : 14);
  file.integer("v_blocks_per_token", polar_values ? 1 : 4, polar_values ? 1 : 4);
  const bool residual = polar_values && file.integer("use_qjl", 0, 1) != 0;
  if (!file.at("sm_scale").is_number()) file.bad("sm_scale", "must be a number");
  const size_t n = file.count("cases");
  for (size_t i = 0; i < n; ++i)
    fused_case(file.element("cases", i), polar_values, residual, file.at("sm_scale").get<double>(), result);
}

}  // namespace

FixtureResult check_fixture(const std::string& path, const formats::TcqTable* table) {
  const MappedFile mapped(path);
  const auto* text = reinterpret_cast<const char*>(mapped.bytes().data());
  const Json json = Json::parse(text, text + mapped.bytes().size(), nullptr, false);
  if (json.is_discarded() || !json.is_object())
    fail(ErrorCode::kBadFile, "{}: not a JSON object; a fixture has the fields kernel, head_dim, ...", path);
  const Fields file(path, json);
  FixtureResult result;
  result.kernel = file.text("kernel");
  if (result.kernel == "turbo3" || result.kernel == "turbo4" || result.kernel == "turbo3_tcq")
    turbo(file, result.kernel, table, result);
  else if (result.kernel == "qjl")
    qjl(file, result);
  else if (result.kernel == "polar" || result.kernel == "polar_preht")
    polar(file, result);
  else if (result.kernel.starts_with("fused_attn_qjl_tbq") ||
           result.kernel.starts_with("fused_attn_qjl_polar"))
    fused(file, result.kernel.starts_with("fused_attn_qjl_polar"), result);
  else
    file.bad("kernel",
             fmt::format(
                 "'{}' is unknown; known: turbo3 turbo4 turbo3_tcq qjl polar polar_preht fused_attn_qjl_tbq "
                 "fused_attn_qjl_polar",
                 result.kernel));
  return result;
}

}  // namespace kvasir::verify
