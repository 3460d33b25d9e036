#include "verify/checks/rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "formats/format.h"
#include "graph/kv_layout.h"
#include "verify/checks/context.h"
#include "verify/reference/codec.h"
#include "verify/reference/half.h"
#include "verify/reference/random.h"

namespace kvasir::verify {

using graph::kPageTokens;

constexpr size_t kFewRows = 16;  // that CUDA's kernel of a few rows takes

void DeviceBuffer::poison(size_t begin, size_t end) {
  const std::vector<std::byte> bytes(std::min<size_t>(end - begin, size_t(1) << 20), std::byte(0xff));
  for (size_t at = begin; at < end; at += bytes.size())
    backend_->copy(data_ + at, bytes.data(), std::min(bytes.size(), end - at));
}

float RigSpec::scale() const { return 1.0f / std::sqrt(float(head_dim)); }

reference::AttentionSpec RigSpec::attention() const {
  return {n_head, n_kv, head_dim, window, scale(), softcap, exact_first, exact_last};
}

bool outranges_flash(const backends::Caps& caps, DType type) {
  return caps.name == "cuda" && (type == DType::f32 || type == DType::bf16);
}

bool in_terms(const backends::Caps& caps, const RigSpec& spec, bool many_rows) {
  const bool built = many_rows ? spec.head_dim == 256 || spec.head_dim == 512 : spec.head_dim >= 128;
  return outranges_flash(caps, spec.k) && spec.k == spec.v && built && caps.isa.starts_with("sm_90");
}

Rig::Rig(backends::Backend& backend, const RigSpec& spec) : backend_(backend), spec_(spec) {
  const backends::Caps caps = backend.caps();
  const bool flash = spec.flash && !outranges_flash(caps, spec.k) && !outranges_flash(caps, spec.v);
  spec_.kernel = !flash ? Kernel::kSingle : caps.name == "cuda" ? Kernel::kHalves : Kernel::kCodes;
  // Prompts have it at fewer head sizes (spec_of).
  prompt_in_terms_ = in_terms(caps, spec, true);
  if (spec.flash && in_terms(caps, spec, false)) spec_.kernel = Kernel::kTerms;
  make_tables();
  make_graph();
  backend_.upload(graph_, {}, {});
  make_cache();
  backends::Decisions decisions;
  decisions.flash = spec.flash ? backends::FlashAttention::kOn : backends::FlashAttention::kOff;
  decisions.n_seq = int(spec.lengths.size());
  decisions.keep_values = true;
  backends::KvBuffers kv;
  kv.data = {pages_->data()};
  kv.n_pages = {0};
  for (const auto& table : tables_) kv.n_pages[0] += int(table.size());
  kv.n_pages[0] += 3;
  kv.exact = {exact_->data()};
  kv.n_exact = {n_exact_};
  executable_ = backend_.compile(graph_, decisions, kv, spec.max_rows);
}

void Rig::make_tables() {
  int n = 0;
  for (const int length : spec_.lengths) {
    first_token_.push_back(n);
    n += length;
  }
  in_few_.assign(size_t(n), false);
  const auto rows = [&](uint64_t side, int width, double sigma) {
    return reference::Gaussian(spec_.seed * 0x10001 + side).vector(size_t(n) * size_t(width), sigma);
  };
  q_ = rows(0, n_q(), spec_.gain);
  k_ = rows(0x100 + uint64_t(spec_.k), n_kv_width(), 1);
  v_ = rows(0x200 + uint64_t(spec_.v), n_kv_width(), 1);
  if (spec_.hard_rows) {
    make_hard_rows(k_);
    make_hard_rows(v_);
  }
  if (spec_.spoiled >= 0) k_[size_t(spec_.spoiled) * size_t(n_kv_width()) + 5] = spec_.spoil;
  if (!spec_.one_hot) return;
  std::fill(v_.begin(), v_.end(), 0.0f);
  for (size_t seq = 0; seq < spec_.lengths.size(); ++seq)
    for (int pos = 0; pos < std::min(spec_.lengths[seq], n_kv_width()); ++pos)
      v_[size_t(token(int(seq), pos)) * size_t(n_kv_width()) + size_t(pos)] = 1;
}

// Zeros; blocks of 32 values of which all but the first lie halfway between two codes of q8_0, q4_0 and q5_0;
// equal magnitudes; values that leave a scale no digits; outliers.
void Rig::make_hard_rows(std::vector<float>& table) const {
  const int width = n_kv_width();
  const auto fill = [&](int pos, const auto& value) {
    for (int i = 0; i < width; ++i) {
      float& x = table[size_t(pos) * size_t(width) + size_t(i)];
      x = value(i % 32, x);
    }
  };
  fill(3, [](int, float) { return 0.0f; });
  fill(4, [](int i, float) { return i == 0 ? 127.0f : 7.0f * float(i) - 112.5f; });
  fill(5, [](int i, float) { return i == 0 ? -8.0f : float(i % 15) - 7.5f; });
  fill(6, [](int i, float) { return i == 0 ? -16.0f : float(i % 31) - 15.5f; });
  fill(7, [](int i, float) { return i % 2 ? -3.0f : 3.0f; });
  fill(8, [](int, float x) { return 1e-6f * x; });
  fill(9, [](int i, float x) { return i % 32 == 5 ? 10 * x : x; });
}

void Rig::make_graph() {
  const auto value = [&](const char* name, int width) {
    graph_.values.push_back({name, width, graph::RowSet::kAll});
    return graph::ValueId(graph_.values.size() - 1);
  };
  const auto look_up = [&](const char* name, const std::vector<float>& table, int width) {
    graph::Weight weight;
    weight.name = name;
    weight.type = DType::f32;
    weight.n_in = width;
    weight.n_out = int64_t(table.size()) / width;
    weight.data = std::as_bytes(std::span(table));
    graph_.weights.push_back(weight);
    graph::Op op;
    op.kind = graph::OpKind::embed;
    op.layer = 0;
    op.w[0] = graph::WeightId(graph_.weights.size() - 1);
    op.out = value(name, width);
    graph_.ops.push_back(op);
    return op.out;
  };
  const graph::ValueId q = look_up("q", q_, n_q()), k = look_up("k", k_, n_kv_width()),
                       v = look_up("v", v_, n_kv_width());
  graph::KvSpec kv;
  kv.layer = 0;
  kv.head_dim = spec_.head_dim;
  kv.n_kv = spec_.n_kv;
  kv.window = spec_.window;
  kv.k_type = spec_.k;
  kv.v_type = spec_.v;
  kv.exact_first = spec_.exact_first;
  kv.exact_last = spec_.exact_last;
  kv.tcq = spec_.tcq.table;
  graph_.kv.push_back(kv);
  graph::Op append;
  append.kind = graph::OpKind::kv_append;
  append.layer = 0;
  append.in = {k, v, graph::kNone};
  append.n_head = spec_.n_kv;
  append.head_dim = spec_.head_dim;
  append.kv = 0;
  graph_.ops.push_back(append);
  graph::Op attention;
  attention.kind = graph::OpKind::attention;
  attention.layer = 0;
  attention.in[0] = q;
  attention.out = out_value_ = value("attention", n_q());
  attention.scale = spec_.scale();
  attention.softcap = spec_.softcap;
  attention.n_head = spec_.n_head;
  attention.head_dim = spec_.head_dim;
  attention.kv = 0;
  graph_.ops.push_back(attention);
}

void Rig::make_cache() {
  int n_pages = 3;  // pages that nobody uses
  for (const int length : spec_.lengths) n_pages += (length + kPageTokens - 1) / kPageTokens;
  pages_ = std::make_unique<DeviceBuffer>(backend_, size_t(n_pages) * graph::kv_page_bytes(kv()));
  pages_->poison();
  // Physical pages in an order of no meaning.
  std::vector<int32_t> order;
  for (int i = 0; i < n_pages; ++i) order.push_back(i);
  uint64_t state = spec_.seed + uint64_t(spec_.k) * 131 + uint64_t(spec_.v) * 17;
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[reference::splitmix64(state) % i]);
  const bool exact = graph::kv_exact_page_bytes(kv()) > 0;
  size_t next = 0;
  for (const int length : spec_.lengths) {
    const size_t n = size_t(length + kPageTokens - 1) / kPageTokens;
    tables_.emplace_back(order.begin() + long(next), order.begin() + long(next + n));
    exact_tables_.emplace_back(n, -1);
    next += n;
    done_.push_back(0);
    if (!exact) continue;
    n_exact_ += spec_.tight ? std::min(int(n), spec_.exact_first + 2 * (1 + spec_.exact_last)) : int(n);
  }
  exact_ = std::make_unique<DeviceBuffer>(backend_, size_t(n_exact_) * graph::kv_exact_page_bytes(kv()));
  exact_->poison();
  for (int i = n_exact_; i > 0; --i) free_exact_.push_back(i - 1);
  size_t n_rows = 0;
  for (const int length : spec_.lengths) n_rows += size_t(length);
  out_.assign(n_rows * size_t(n_q()), std::nanf(""));
}

int Rig::take_exact() {
  if (free_exact_.empty()) fail(ErrorCode::kFailed, "the check ran out of exact pages");
  const int page = free_exact_.back();
  free_exact_.pop_back();
  return page;
}

// Exact pages of rows [begin, end) before they are written.
void Rig::place_pages(int seq, int begin, int end) {
  auto& table = exact_tables_[size_t(seq)];
  if (n_exact_ == 0) return;
  const int last = (end - 1) / kPageTokens;
  for (int p = begin / kPageTokens; p <= last; ++p) {
    if (table[size_t(p)] >= 0) continue;
    const bool stays = !spec_.tight || p < spec_.exact_first || last - p <= spec_.exact_last;
    table[size_t(p)] = stays ? take_exact() : n_exact_ + n_staged_++;
  }
  if (!spec_.tight || spec_.window == 0) return;
  for (int p = 0; (p + 1) * kPageTokens <= begin - spec_.window + 1; ++p) {
    int32_t& page = tables_[size_t(seq)][size_t(p)];
    if (page < 0) continue;
    pages_->poison(size_t(page) * graph::kv_page_bytes(kv()),
                   (size_t(page) + 1) * graph::kv_page_bytes(kv()));
    page = -1;
  }
}

// After a step that ended before position `end`: exact pages that no later query reads.
void Rig::drop_pages(int seq, int end) {
  if (n_exact_ == 0 || !spec_.tight) return;
  auto& table = exact_tables_[size_t(seq)];
  const size_t bytes = graph::kv_exact_page_bytes(kv());
  for (int p = 0; p * kPageTokens < end; ++p) {
    int32_t& page = table[size_t(p)];
    const bool full = (p + 1) * kPageTokens <= end;
    if (page < 0 || !full || p < spec_.exact_first || end / kPageTokens - p <= spec_.exact_last) continue;
    if (page < n_exact_) {
      exact_->poison(size_t(page) * bytes, (size_t(page) + 1) * bytes);
      free_exact_.push_back(page);
    }
    page = -1;
  }
}

void Rig::step(std::span<const Take> takes) {
  std::vector<graph::Row> rows;
  n_staged_ = 0;
  for (const Take& take : takes) {
    const int begin = done_[size_t(take.seq)], end = begin + take.n;
    place_pages(take.seq, begin, end);
    for (int pos = begin; pos < end; ++pos) rows.push_back({token(take.seq, pos), pos, take.seq, 0});
    done_[size_t(take.seq)] = end;
  }
  std::vector<graph::SequenceView> views(spec_.lengths.size());
  for (size_t seq = 0; seq < views.size(); ++seq) {
    views[seq].page_table[spec_.window > 0] = tables_[seq];
    views[seq].exact_table[spec_.window > 0] = exact_tables_[seq];
  }
  executable_->submit({rows, views});
  for (const graph::Row& row : rows) in_few_[size_t(row.token)] = rows.size() <= kFewRows;
  const std::span<const float> result = executable_->inspect(out_value_);
  if (result.size() < rows.size() * size_t(n_q()))
    fail(ErrorCode::kFailed, "the backend kept {} values of {} rows", result.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy_n(result.begin() + long(i * size_t(n_q())), n_q(),
                out_.begin() + long(size_t(rows[i].token) * size_t(n_q())));
  for (const Take& take : takes) drop_pages(take.seq, done_[size_t(take.seq)]);
}

RigSpec Rig::spec_of(int seq, int pos) const {
  RigSpec spec = spec_;
  if (spec.kernel == Kernel::kTerms && !in_few_[size_t(token(seq, pos))] && !prompt_in_terms_)
    spec.kernel = Kernel::kSingle;
  return spec;
}

void Rig::rewind(int pos) {
  const size_t page_bytes = graph::kv_page_bytes(kv()), exact_bytes = graph::kv_exact_page_bytes(kv());
  for (size_t seq = 0; seq < done_.size(); ++seq) {
    if (spec_.tight || pos % kPageTokens != 0 || pos > done_[seq])
      fail(ErrorCode::kFailed, "a check went back to position {} of {}", pos, done_[seq]);
    done_[seq] = pos;
    const long width = n_q(), first = first_token_[seq];
    std::fill(out_.begin() + (first + pos) * width, out_.begin() + (first + spec_.lengths[seq]) * width,
              std::nanf(""));
    for (size_t p = size_t(pos / kPageTokens); p < tables_[seq].size(); ++p) {
      pages_->poison(size_t(tables_[seq][p]) * page_bytes, (size_t(tables_[seq][p]) + 1) * page_bytes);
      int32_t& exact = exact_tables_[seq][p];
      if (exact < 0) continue;
      exact_->poison(size_t(exact) * exact_bytes, (size_t(exact) + 1) * exact_bytes);
      free_exact_.push_back(exact);
      exact = -1;
    }
  }
}

void Rig::run_all() {
  for (int seq = 0; seq < int(spec_.lengths.size()); ++seq)
    while (done_[size_t(seq)] < spec_.lengths[size_t(seq)]) {
      const Take take{seq, std::min(spec_.max_rows, spec_.lengths[size_t(seq)] - done_[size_t(seq)])};
      step({&take, 1});
    }
}

std::span<const float> Rig::out(int seq, int pos) const { return row(out_, n_q(), seq, pos); }

bool Rig::has_exact(reference::Side side) const {
  return formats::require(side == reference::Side::kKeys ? spec_.k : spec_.v).open_page();
}

std::vector<std::byte> Rig::page(int seq, int page, int kv_head, backends::PagePart part) const {
  using backends::PagePart;
  const bool exact = part == PagePart::kExactKeys || part == PagePart::kExactValues;
  const DType type = part == PagePart::kKeys || part == PagePart::kExactKeys ? spec_.k : spec_.v;
  const size_t row_bytes =
      exact ? size_t(spec_.head_dim) * 2 : formats::require(type).row_bytes(spec_.head_dim);
  std::vector<std::byte> rows(row_bytes * kPageTokens);
  const int32_t index = (exact ? exact_tables_ : tables_)[size_t(seq)][size_t(page)];
  if (index < 0 || (exact && index >= n_exact_))
    fail(ErrorCode::kFailed, "page {} is not stored any more", page);
  const std::byte* data = exact ? exact_->data() + size_t(index) * graph::kv_exact_page_bytes(kv())
                                : pages_->data() + size_t(index) * graph::kv_page_bytes(kv());
  backend_.read_page(kv(), part, kv_head, data, rows.data());
  return rows;
}

void Rig::edit_page(int seq, int at, int kv_head, backends::PagePart part,
                    const std::function<void(std::span<std::byte>)>& edit) {
  std::vector<std::byte> rows = page(seq, at, kv_head, part);
  edit(rows);
  std::byte* data = pages_->data() + size_t(tables_[size_t(seq)][size_t(at)]) * graph::kv_page_bytes(kv());
  backend_.write_page(kv(), part, kv_head, data, rows.data());
}

std::vector<reference::Rows> Rig::rows(reference::Side side, int level_codes, ThreadPool& workers) const {
  using backends::PagePart;
  const bool keys = side == reference::Side::kKeys, open = has_exact(side);
  const DType type = keys ? spec_.k : spec_.v;
  const reference::Codec* codec = spec_.codec(type);
  if (!codec) fail(ErrorCode::kFailed, "type {} has no double-precision reference", type_name(type));
  const int d = spec_.head_dim;
  std::vector<reference::Rows> all(spec_.lengths.size());
  // Rows of one head of one page, and where they go.
  struct Piece {
    int seq, page, head;
    backends::PagePart part;
    int count;
    bool exact;
    double *out, *scale;
    std::vector<std::byte> bytes;
  };
  std::vector<Piece> pieces;
  for (int seq = 0; seq < int(all.size()); ++seq) {
    reference::Rows& rows = all[size_t(seq)];
    const int n = done_[size_t(seq)];
    rows.coded.assign(size_t(n) * size_t(n_kv_width()), NAN);
    if (open) rows.exact = rows.coded;
    if (!keys) rows.scale.assign(size_t(n) * size_t(spec_.n_kv), 0);
    for (int p = 0; p * kPageTokens < n; ++p)
      for (int head = 0; head < spec_.n_kv; ++head) {
        const int count = std::min(kPageTokens, n - p * kPageTokens);
        const size_t row = size_t(p) * kPageTokens * size_t(spec_.n_kv) + size_t(head), at = row * size_t(d);
        double* scale = keys ? nullptr : rows.scale.data() + row;
        const auto add = [&](PagePart part, bool exact, double* to, double* of) {
          pieces.push_back({seq, p, head, part, count, exact, to + at, of, {}});
        };
        if (!open || count == kPageTokens)
          add(keys ? PagePart::kKeys : PagePart::kValues, false, rows.coded.data(), scale);
        if (open) add(keys ? PagePart::kExactKeys : PagePart::kExactValues, true, rows.exact.data(), nullptr);
      }
  }
  const auto read = [&](Piece& piece) { piece.bytes = page(piece.seq, piece.page, piece.head, piece.part); };
  const bool parallel = reads_in_parallel();
  if (!parallel)
    for (Piece& piece : pieces) read(piece);
  for_each(workers, int64_t(pieces.size()), [&](int64_t i) {
    Piece& piece = pieces[size_t(i)];
    if (parallel) read(piece);
    for (int t = 0; t < piece.count; ++t) {
      double* out = piece.out + size_t(t) * size_t(n_kv_width());
      const std::byte* row =
          piece.bytes.data() + size_t(t) * (piece.exact ? size_t(d) * 2 : codec->row_bytes(d));
      if (piece.exact)
        reference::f16_row(row, d, out);
      else if (level_codes > 0)
        codec->decode_rounded(side, row, d, level_codes, out);
      else
        codec->decode(row, d, out);
      if (piece.scale) piece.scale[t * spec_.n_kv] = codec->largest_scale(row, d);
      codec->from_basis(side, out, d);
    }
  });
  return all;
}

std::string Rig::variant() const {
  for (const std::string& line : executable_->describe()) {
    const size_t at = line.find("kernel ");
    if (at != std::string::npos) return line.substr(at + 7, line.find(',', at) - at - 7);
  }
  return "";
}

}  // namespace kvasir::verify
