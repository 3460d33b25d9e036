#include "engine/saved_state.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/sha256.h"
#include "engine/state_header.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace kvasir::engine {

static_assert(std::endian::native == std::endian::little, "states are little-endian");

using backends::PagePart;
using graph::kPageTokens;

namespace {

constexpr size_t kPrefix = 64, kRecordHead = 64, kSummed = 32;  // a digest follows the first 32 bytes of each
constexpr uint64_t kMaxHeader = uint64_t(16) << 20;
constexpr char kMagic[8] = {'K', 'V', 'S', 'T', 'A', 'T', 'E', 0};

template <typename T>
void put(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}
template <typename T>
T get(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

Sha256Digest digest(std::span<const std::byte> head, std::span<const std::byte> payload) {
  Sha256 hash;
  hash.update(head.first(kSummed));
  hash.update(payload);
  return hash.finish();
}

// The first 32 bytes of a record's head; its digest stands behind them.
std::array<std::byte, kRecordHead> record_head(const StateRecord& r) {
  std::array<std::byte, kRecordHead> head{};
  std::memcpy(head.data(), r.tokens ? "TOKS" : "PAGE", 4);
  put(head, 4, r.tokens ? int32_t(-1) : int32_t(r.part));
  put(head, 8, int32_t(r.layer));
  put(head, 12, int32_t(r.page));
  put(head, 16, int32_t(r.rows));
  put(head, 20, int32_t(r.rope_base));
  put(head, 24, r.bytes);
  return head;
}

DType row_type(const graph::KvSpec& spec, const StateRecord& r) {
  return r.exact() ? DType::f16 : r.keys() ? spec.k_type : spec.v_type;
}

class RecordList {
 public:
  RecordList(const StateInfo& info, uint64_t first) : info_(info), offset_(first) {
    StateRecord tokens;
    tokens.tokens = true;
    tokens.rows = info.n_tokens;
    add(tokens, uint64_t(info.n_tokens) * sizeof(int32_t));
    const int n_pages = (info.n_tokens + kPageTokens - 1) / kPageTokens;
    for (size_t kv = 0; kv < info.specs.size(); ++kv)
      for (int page = info.first_page[info.specs[kv].window > 0]; page < n_pages; ++page)
        add_page(int(kv), page);
  }
  std::vector<StateRecord> records;
  uint64_t end() const { return offset_; }

 private:
  void add(StateRecord record, uint64_t bytes) {
    record.offset = offset_;
    record.bytes = bytes;
    offset_ += kRecordHead + bytes;
    records.push_back(record);
  }

  void add_page(int kv, int page) {
    const graph::KvSpec& spec = info_.specs[size_t(kv)];
    const int rows = std::min(kPageTokens, info_.n_tokens - page * kPageTokens);
    for (PagePart part : {PagePart::kKeys, PagePart::kValues, PagePart::kExactKeys, PagePart::kExactValues}) {
      StateRecord r;
      r.part = part;
      r.kv = kv;
      r.layer = spec.layer;
      r.page = page;
      r.rows = rows;
      r.rope_base = page >= info_.keep_pages ? info_.shift : 0;
      const formats::Format& type = formats::require(r.keys() ? spec.k_type : spec.v_type);
      // A type that encodes whole pages has nothing encoded of the page that is not full yet.
      const bool stored =
          r.exact() ? type.open_page() && std::ranges::binary_search(info_.exact_pages[spec.window > 0], page)
                    : !type.open_page() || rows == kPageTokens;
      if (stored)
        add(r, uint64_t(rows) * uint64_t(spec.n_kv) *
                   formats::require(row_type(spec, r)).row_bytes(spec.head_dim));
    }
  }

  const StateInfo& info_;
  uint64_t offset_;
};

uint64_t page_up(uint64_t bytes) { return (bytes + kPrefix - 1) / kPrefix * kPrefix; }

}  // namespace

std::vector<StateRecord> state_records(const StateInfo& info) { return RecordList(info, 0).records; }

std::vector<int> exact_pages_of(std::span<const graph::KvSpec> specs, int cls, int n_tokens, int first_page) {
  std::vector<int> pages;
  for (const graph::KvSpec& spec : specs) {
    if ((spec.window > 0) != (cls == 1) || graph::kv_exact_page_bytes(spec) == 0) continue;
    for (int page = first_page; page * kPageTokens < n_tokens; ++page)
      if (graph::reads_exact(spec, n_tokens / kPageTokens, page)) pages.push_back(page);
    break;  // caches of a class keep the same pages
  }
  return pages;
}

std::string StateRecord::text() const {
  if (tokens) return "the tokens";
  return fmt::format("layer {}, {}{}, page {} (tokens {} to {})", layer, exact() ? "exact " : "",
                     keys() ? "keys" : "values", page, page * kPageTokens, page * kPageTokens + rows - 1);
}

StateWriter::StateWriter(const StateInfo& info, StateSink sink) : sink_(std::move(sink)) {
  const std::string text = header_text(info);
  head_.resize(page_up(kPrefix + text.size()));
  std::memcpy(head_.data() + kPrefix, text.data(), text.size());
  RecordList list(info, head_.size());
  records_ = std::move(list.records);
  total_ = list.end();
  std::memcpy(head_.data(), kMagic, sizeof kMagic);
  put(head_, 8, kStateVersion);
  put(head_, 12, uint32_t(head_.size() - kPrefix));
  put(head_, 16, total_);
  const Sha256Digest sum = digest(head_, std::span<const std::byte>(head_).subspan(kPrefix));
  std::memcpy(head_.data() + kSummed, sum.data(), sum.size());
}

void StateWriter::write_head() { sink_(head_); }

void StateWriter::write(const StateRecord& record, std::span<const std::byte> payload) {
  if (payload.size() != record.bytes)
    fail(ErrorCode::kFailed, "{}: {} bytes for a record of {}", record.text(), payload.size(), record.bytes);
  std::array<std::byte, kRecordHead> head = record_head(record);
  const Sha256Digest sum = digest(head, payload);
  std::memcpy(head.data() + kSummed, sum.data(), sum.size());
  sink_(head);
  sink_(payload);
}

namespace {

struct Head {
  std::string text;    // the header
  uint64_t bytes = 0;  // prefix and header
  uint64_t total = 0;
};

Head read_head(StateSource& source) {
  const std::string& name = source.name();
  const auto bad = [&](const std::string& what) { fail(ErrorCode::kBadFile, "{}: {}", name, what); };
  std::array<std::byte, kPrefix> prefix{};
  const size_t there = size_t(std::min<uint64_t>(source.size(), kPrefix));
  source.read(0, std::span(prefix).first(there));
  if (std::memcmp(prefix.data(), kMagic, std::min(there, sizeof kMagic)) != 0 || there == 0)
    bad("not a saved state of Kvasir (it does not start with KVSTATE)");
  if (there < kPrefix)
    bad(fmt::format("truncated: {} bytes, inside the first {} of its head", there, kPrefix));
  if (const auto version = get<uint32_t>(prefix, 8); version != kStateVersion)
    fail(ErrorCode::kRefused, "{}: state format version {}; this build reads version {}", name, version,
         kStateVersion);
  const uint64_t header = get<uint32_t>(prefix, 12), total = get<uint64_t>(prefix, 16);
  if (header == 0 || header > kMaxHeader || total < kPrefix + header)
    bad(fmt::format("its head is damaged: {} bytes of header in {} in all", header, total));
  if (kPrefix + header > source.size())
    bad(fmt::format("truncated: {} bytes, inside its head of {}; the whole has {}", source.size(),
                    kPrefix + header, total));
  std::vector<std::byte> text(header);
  source.read(kPrefix, text);
  if (const Sha256Digest sum = digest(prefix, text);
      std::memcmp(sum.data(), prefix.data() + kSummed, sum.size()))
    bad("its head is damaged (checksum)");
  const auto end = std::find(text.begin(), text.end(), std::byte{0});
  return {std::string(reinterpret_cast<const char*>(text.data()), size_t(end - text.begin())),
          kPrefix + header, total};
}

}  // namespace

std::vector<graph::KvSpec> state_caches(StateSource& source, const StateInfo& mine) {
  return read_cache_types(read_head(source).text, mine, source.name());
}

StateReader::StateReader(StateSource& source, const StateInfo& mine, int n_ctx) : source_(source) {
  const Head head = read_head(source);
  info_ = read_header(head.text, mine, n_ctx, source.name());
  RecordList list(info_, head.bytes);
  records_ = std::move(list.records);
  if (list.end() != head.total)
    fail(ErrorCode::kBadFile, "{}: its head is damaged: it says {} bytes, but what it describes has {}",
         source.name(), head.total, list.end());
  check_size(head.total);
}

void StateReader::check_size(uint64_t total) const {
  const uint64_t size = source_.size();
  if (size > total)
    fail(ErrorCode::kBadFile, "{}: {} bytes follow the end of the state ({} bytes)", source_.name(),
         size - total, total);
  if (size == total) return;
  const auto inside = std::upper_bound(records_.begin(), records_.end(), size,
                                       [](uint64_t at, const StateRecord& r) { return at < r.offset; });
  fail(ErrorCode::kBadFile, "{}: truncated in {}: {} bytes of {}", source_.name(),
       (inside == records_.begin() ? *inside : *(inside - 1)).text(), size, total);
}

std::span<const std::byte> StateReader::read(const StateRecord& record) {
  buffer_.resize(kRecordHead + record.bytes);
  source_.read(record.offset, buffer_);
  const std::span<const std::byte> head = std::span(buffer_).first(kRecordHead),
                                   payload = std::span(buffer_).subspan(kRecordHead);
  const std::array<std::byte, kRecordHead> expected = record_head(record);
  const Sha256Digest sum = digest(head, payload);
  if (std::memcmp(head.data() + kSummed, sum.data(), sum.size()) != 0)
    fail(ErrorCode::kBadFile, "{}: {}: damaged (its checksum differs)", source_.name(), record.text());
  if (std::memcmp(head.data(), expected.data(), kSummed) != 0)
    fail(ErrorCode::kBadFile, "{}: {}: another record stands in its place", source_.name(), record.text());
  return payload;
}

}  // namespace kvasir::engine
