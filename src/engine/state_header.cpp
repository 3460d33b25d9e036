#include "engine/state_header.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "formats/format.h"
#include "formats/identity.h"
#include "formats/tcq_table.h"
#include "graph/kv_layout.h"

namespace kvasir::engine {

using graph::kPageTokens;
using Json = nlohmann::ordered_json;

namespace {

constexpr int64_t kMaxShift = int64_t(1) << 30;

// Most layers are alike: each kind of row is looked at once.
class Identities {
 public:
  const formats::Identity& of(const formats::Format& format, formats::Role side, int head_dim) {
    auto [it, fresh] = known_.try_emplace({format.type, side, head_dim});
    if (fresh) it->second = formats::identity(format, side, head_dim);
    return it->second;
  }

 private:
  std::map<std::tuple<DType, formats::Role, int>, formats::Identity> known_;
};

Json side_json(DType type, formats::Role side, int head_dim, const formats::TcqTable* tcq,
               Identities& identities) {
  const formats::Format& format = formats::require(type);
  const formats::Identity& identity = identities.of(format, side, head_dim);
  Json json = {{"type", format.name},
               {"id", uint32_t(type)},
               {"row_bytes", format.row_bytes(head_dim)},
               {"table", tcq && format.decode_with ? tcq->hash : identity.table},
               {"basis", identity.basis}};
  if (!identity.seed.empty()) json["seed"] = identity.seed;
  return json;
}

Json cache_json(const graph::KvSpec& spec, Identities& identities) {
  const bool exact = graph::kv_exact_page_bytes(spec) > 0;  // otherwise everything is as written anyway
  return {{"layer", spec.layer},
          {"head_dim", spec.head_dim},
          {"n_kv", spec.n_kv},
          {"window", spec.window},
          {"exact_first", exact ? spec.exact_first : 0},
          {"exact_last", exact ? spec.exact_last : 0},
          {"k", side_json(spec.k_type, formats::kKeys, spec.head_dim, spec.tcq.get(), identities)},
          {"v", side_json(spec.v_type, formats::kValues, spec.head_dim, spec.tcq.get(), identities)}};
}

Json caches_json(std::span<const graph::KvSpec> specs) {
  Identities identities;
  Json caches = Json::array();
  for (const graph::KvSpec& spec : specs) caches.push_back(cache_json(spec, identities));
  return caches;
}

// One header, looked at field by field.
class Reader {
 public:
  Reader(const Json& json, const std::string& name) : json_(json), name_(name) {}

  [[noreturn]] void bad(std::string_view field, std::string_view why) const {
    fail(ErrorCode::kBadFile, "{}: field '{}' of its head {}", name_, field, why);
  }
  const Json& field(const Json& in, const std::string& key) const {
    if (!in.is_object() || !in.contains(key)) bad(key, "is missing");
    return in[key];
  }
  int64_t integer(const Json& in, const std::string& key, int64_t min, int64_t max) const {
    const Json& value = field(in, key);
    if (!value.is_number_integer()) bad(key, "is not a whole number");
    const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX);
    if (huge || value.get<int64_t>() < min || value.get<int64_t>() > max)
      bad(key, fmt::format("is {}; it must be between {} and {}", value.dump(), min, max));
    return value.get<int64_t>();
  }
  std::string text(const Json& in, const std::string& key) const {
    const Json& value = field(in, key);
    if (!value.is_string()) bad(key, "is not a text");
    return value.get<std::string>();
  }
  const Json& root() const { return json_; }
  const std::string& name() const { return name_; }

 private:
  const Json& json_;
  const std::string& name_;
};

// "-ctk tbq4_h -ctv q8_0 --kv-swa f16:f16" for a list of caches.
std::string types_text(const Reader& r, const Json& caches) {
  std::string global, sliding;
  for (const Json& cache : caches) {
    const std::string k = r.text(r.field(cache, "k"), "type"), v = r.text(r.field(cache, "v"), "type");
    if (r.integer(cache, "window", 0, INT32_MAX) == 0)
      global = fmt::format("-ctk {} -ctv {}", k, v);
    else
      sliding = fmt::format("{}:{}", k, v);
  }
  if (sliding.empty()) return global;
  if (!global.empty()) return global + " --kv-swa " + sliding;
  return fmt::format("-ctk {} -ctv {}", sliding.substr(0, sliding.find(':')),
                     sliding.substr(sliding.find(':') + 1));
}

Json parsed(std::string_view text, const std::string& name) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) fail(ErrorCode::kBadFile, "{}: its head is not JSON", name);
  return json;
}

void check_model(const Reader& r, const StateInfo& mine) {
  const Json& model = r.field(r.root(), "model");
  const std::string hash = r.text(model, "sha256");
  if (hash == mine.model_hash) return;
  fail(ErrorCode::kRefused,
       "{}: a state of another model: saved with {} (sha256 {:.12}...), this is {} ({:.12}...)", r.name(),
       r.text(model, "name"), hash, mine.model_name, mine.model_hash);
}

// A difference in meaning of one side of one cache.
void check_side(const Reader& r, const Json& theirs, const Json& mine, int layer, std::string_view side) {
  const std::string type = r.text(theirs, "type");
  for (const char* key : {"id", "row_bytes"})
    if (r.integer(theirs, key, 0, INT32_MAX) != mine[key].get<int64_t>())
      fail(ErrorCode::kRefused, "{}: layer {}, {}: {} of another format: {} is {}; in this build it is {}",
           r.name(), layer, side, type, key, theirs[key].dump(), mine[key].dump());
  const std::string seed = theirs.contains("seed") ? r.text(theirs, "seed") : "",
                    my_seed = mine.value("seed", std::string());
  if (seed != my_seed)
    fail(ErrorCode::kRefused, "{}: layer {}, {}: {} rotated with the signs of seed {}; this build has {}",
         r.name(), layer, side, type, seed.empty() ? "(none)" : seed, my_seed.empty() ? "none" : my_seed);
  if (r.text(theirs, "table") != mine["table"].get<std::string>())
    fail(ErrorCode::kRefused,
         "{}: layer {}, {}: {} with another codebook table ({:.12}...; this session has {:.12}...)", r.name(),
         layer, side, type, r.text(theirs, "table"), mine["table"].get<std::string>());
  if (r.text(theirs, "basis") != mine["basis"].get<std::string>())
    fail(ErrorCode::kRefused,
         "{}: layer {}, {}: {} in another rotated basis ({:.12}...; this session has {:.12}...)", r.name(),
         layer, side, type, r.text(theirs, "basis"), mine["basis"].get<std::string>());
}

void check_caches(const Reader& r, const StateInfo& info) {
  const Json& theirs = r.field(r.root(), "caches");
  const Json mine = caches_json(info.specs);
  if (!theirs.is_array() || theirs.size() != mine.size())
    r.bad("caches", fmt::format("is not a list of {}", mine.size()));
  for (size_t i = 0; i < mine.size(); ++i) {
    const Json& a = theirs[i];
    const int layer = info.specs[i].layer;
    for (const char* key : {"layer", "head_dim", "n_kv", "window"})
      if (r.integer(a, key, 0, INT32_MAX) != mine[i][key].get<int64_t>())
        fail(ErrorCode::kRefused, "{}: layer {}: {} is {}; this model has {}", r.name(), layer, key,
             a[key].dump(), mine[i][key].dump());
    for (const char* side : {"k", "v"})
      if (r.text(r.field(a, side), "type") != mine[i][side]["type"].get<std::string>())
        fail(ErrorCode::kRefused,
             "{}: its cache has {}; this session has {} (open it with the types of the state)", r.name(),
             types_text(r, theirs), types_text(r, mine));
    for (const char* key : {"exact_first", "exact_last"})
      if (const int64_t pages = r.integer(a, key, 0, INT32_MAX); pages != mine[i][key].get<int64_t>())
        fail(ErrorCode::kRefused, "{}: layer {} kept {} tokens exact (--kv-{}); this session keeps {}",
             r.name(), layer, pages * kPageTokens,
             key == std::string_view("exact_first") ? "exact-first" : "exact-last",
             mine[i][key].get<int64_t>() * kPageTokens);
    check_side(r, r.field(a, "k"), mine[i]["k"], layer, "keys");
    check_side(r, r.field(a, "v"), mine[i]["v"], layer, "values");
  }
}

// What the next token reads exactly must be there; a shift may have brought pages there that were encoded.
void read_exact_pages(const Reader& r, StateInfo& info, int cls) {
  const char* key = cls == 1 ? "exact_pages_sliding" : "exact_pages";
  const Json& list = r.field(r.root(), key);
  const std::vector<int> all = exact_pages_of(info.specs, cls, info.n_tokens, info.first_page[size_t(cls)]);
  if (!list.is_array() || list.size() > all.size())
    r.bad(key, fmt::format("is not a list of at most {}", all.size()));
  std::vector<int>& pages = info.exact_pages[size_t(cls)];
  for (const Json& page : list) {
    const bool known = page.is_number_integer() && std::ranges::find(all, page.get<int64_t>()) != all.end();
    if (!known || (!pages.empty() && page.get<int64_t>() <= pages.back()))
      r.bad(key,
            fmt::format("has {}, no page that the next token reads exactly, or out of order", page.dump()));
    pages.push_back(page.get<int>());
  }
  const bool open_page = info.n_tokens % kPageTokens != 0 && !all.empty();
  if (pages != all && (info.shift == 0 || (open_page && (pages.empty() || pages.back() != all.back()))))
    r.bad(key, "lacks pages that the next token reads exactly");
}

void read_place(const Reader& r, StateInfo& info, int n_ctx) {
  const Json& root = r.root();
  const int64_t n = r.integer(root, "tokens", 0, INT32_MAX);
  if (n > n_ctx)
    fail(ErrorCode::kRefused, "{}: {} tokens; this session holds {} (a larger -c makes room)", r.name(), n,
         n_ctx);
  const int64_t n_pages = (n + kPageTokens - 1) / kPageTokens;
  info.n_tokens = int(n);
  info.shift = int(r.integer(root, "shift", 0, kMaxShift));
  info.keep_pages = int(r.integer(root, "keep_pages", 0, n_pages));
  if (info.shift % kPageTokens != 0) r.bad("shift", fmt::format("is not a multiple of {}", kPageTokens));
  if (info.shift == 0 && info.keep_pages != 0) r.bad("keep_pages", "is not 0 though nothing was shifted");
  int window = 0;
  for (const graph::KvSpec& spec : info.specs) window = std::max(window, spec.window);
  info.first_page[1] =
      int(r.integer(root, "first_page_sliding", 0, n / kPageTokens));  // an open page is there
  // What the next token sees must be there, unless a shift brought the gap that it left within the window.
  const int64_t first_seen = std::max<int64_t>(0, n - window + 1) / kPageTokens;
  if (info.shift == 0 && info.first_page[1] > first_seen)
    r.bad("first_page_sliding",
          fmt::format("is {}; the window of {} begins in page {}", info.first_page[1], window, first_seen));
  for (int cls = 0; cls < 2; ++cls) read_exact_pages(r, info, cls);
}

}  // namespace

std::string header_text(const StateInfo& info) {
  const Json json = {{"format", "kvasir-state"},
                     {"version", kStateVersion},
                     {"model", {{"name", info.model_name}, {"sha256", info.model_hash}}},
                     {"tokens", info.n_tokens},
                     {"page_tokens", kPageTokens},
                     {"shift", info.shift},
                     {"keep_pages", info.keep_pages},
                     {"first_page_sliding", info.first_page[1]},
                     {"exact_pages", info.exact_pages[0]},
                     {"exact_pages_sliding", info.exact_pages[1]},
                     {"caches", caches_json(info.specs)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

DType type_of(const Reader& r, const Json& cache, const char* side, formats::Role role, int head_dim) {
  const std::string name = r.text(r.field(cache, side), "type");
  const formats::Format* format = formats::find(name);
  if (!format || !format->has_role(role) || !format->takes(head_dim))
    fail(ErrorCode::kRefused, "{}: its cache has '{}' where this build has: {}", r.name(), name,
         formats::names(role));
  return format->type;
}

}  // namespace

std::vector<graph::KvSpec> read_cache_types(std::string_view text, const StateInfo& mine,
                                            const std::string& name) {
  const Json json = parsed(text, name);
  const Reader r(json, name);
  check_model(r, mine);
  const Json& caches = r.field(json, "caches");
  std::vector<graph::KvSpec> specs = mine.specs;
  if (!caches.is_array() || caches.size() != specs.size())
    r.bad("caches", fmt::format("is not a list of {}", specs.size()));
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].k_type = type_of(r, caches[i], "k", formats::kKeys, specs[i].head_dim);
    specs[i].v_type = type_of(r, caches[i], "v", formats::kValues, specs[i].head_dim);
    specs[i].exact_first = int(r.integer(caches[i], "exact_first", 0, kMaxShift / kPageTokens));
    specs[i].exact_last = int(r.integer(caches[i], "exact_last", 0, kMaxShift / kPageTokens));
  }
  return specs;
}

StateInfo read_header(std::string_view text, const StateInfo& mine, int n_ctx, const std::string& name) {
  const Json json = parsed(text, name);
  const Reader r(json, name);
  check_model(r, mine);
  if (r.integer(json, "page_tokens", 1, INT32_MAX) != kPageTokens)
    fail(ErrorCode::kRefused, "{}: pages of {} tokens; this build has {}", name, json["page_tokens"].dump(),
         kPageTokens);
  check_caches(r, mine);
  StateInfo info = mine;
  read_place(r, info, n_ctx);
  return info;
}

}  // namespace kvasir::engine
