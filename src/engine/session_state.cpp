// Saving and loading the state of a sequence: between the cache's pages and the records of a saved state.
#include <cstring>

#include "engine/session_impl.h"
#include "formats/format.h"

namespace kvasir::engine {

using graph::kPageTokens;

namespace {

// Between a whole page side (64 rows a head) and a record (its rows, head after head).
class PageRows {
 public:
  PageRows(const graph::KvSpec& spec, const StateRecord& record) : spec_(spec), record_(record) {
    const DType type = record.exact() ? DType::f16 : record.keys() ? spec.k_type : spec.v_type;
    row_bytes_ = formats::require(type).row_bytes(spec.head_dim);
    whole_.resize(row_bytes_ * size_t(kPageTokens));
  }

  std::vector<std::byte> read(backends::Backend& backend, const std::byte* page) {
    std::vector<std::byte> rows(record_.bytes);
    for (int head = 0; head < spec_.n_kv; ++head) {
      backend.read_page(spec_, record_.part, head, page, whole_.data());
      std::memcpy(rows.data() + size_t(head) * stored(), whole_.data(), stored());
    }
    return rows;
  }

  void write(backends::Backend& backend, std::byte* page, std::span<const std::byte> rows) {
    for (int head = 0; head < spec_.n_kv; ++head) {
      std::memcpy(whole_.data(), rows.data() + size_t(head) * stored(), stored());
      backend.write_page(spec_, record_.part, head, page, whole_.data());
    }
  }

 private:
  size_t stored() const { return row_bytes_ * size_t(record_.rows); }

  const graph::KvSpec& spec_;
  const StateRecord& record_;
  size_t row_bytes_ = 0;
  std::vector<std::byte> whole_;  // rows past the record's stay zero
};

StateInfo describe(const Model& model, const graph::Graph& graph) {
  StateInfo info;
  info.model_hash = model.content_hash();
  info.model_name = model.description();
  info.specs = graph.kv;
  return info;
}

}  // namespace

void Session::Impl::place(int seq, StateInfo& info) const {
  info.n_tokens = int(sequence(seq).size());
  info.shift = cache->shift_of(seq);
  info.keep_pages = std::max(0, cache->keep_pages(seq));
  info.first_page[1] = cache->first_page(seq, 1);
  for (int cls = 0; cls < 2; ++cls) {
    info.exact_pages[size_t(cls)] =
        exact_pages_of(info.specs, cls, info.n_tokens, info.first_page[size_t(cls)]);
    std::erase_if(info.exact_pages[size_t(cls)], [&](int page) { return !cache->has_exact(seq, cls, page); });
  }
}

uint64_t Session::state_bytes(int seq) const {
  StateInfo info = describe(*impl_->model, impl_->graph);
  impl_->place(seq, info);
  return StateWriter(info, nullptr).total_bytes();
}

void Session::save_state(int seq, const StateSink& sink) const {
  StateInfo info = describe(*impl_->model, impl_->graph);
  impl_->place(seq, info);
  StateWriter writer(info, sink);
  writer.write_head();
  writer.write(writer.records()[0], std::as_bytes(tokens(seq)));
  read_pages(seq,
             [&](const StateRecord& record, std::span<const std::byte> rows) { writer.write(record, rows); });
}

void Session::read_pages(int seq, const OnPage& on_page) const {
  const Impl& s = *impl_;
  StateInfo info;
  info.specs = s.graph.kv;
  s.place(seq, info);
  for (const StateRecord& record : state_records(info)) {
    if (record.tokens) continue;
    const std::byte* page = s.cache->page(seq, record.kv, record.page, record.exact());
    on_page(record, PageRows(s.graph.kv[size_t(record.kv)], record).read(s.model->backend(), page));
  }
}

void Session::load_state(int seq, StateSource& source) {
  Impl& s = *impl_;
  std::vector<Token>& stored = s.sequence(seq);
  StateReader reader(source, describe(*s.model, s.graph), s.options.n_ctx);
  std::vector<Token> tokens;
  for (const StateRecord& record : reader.records()) {
    const std::span<const std::byte> payload = reader.read(record);
    if (!record.tokens) continue;
    tokens.resize(size_t(record.rows));
    if (!payload.empty()) std::memcpy(tokens.data(), payload.data(), payload.size());
  }
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= s.graph.n_vocab)
      fail(ErrorCode::kBadFile, "{}: token {} is {}, outside the vocabulary of {}", source.name(), i,
           tokens[i], s.graph.n_vocab);
  const StateInfo& info = reader.info();
  std::array<int, 2> first = info.first_page;
  for (int cls = 0; cls < 2; ++cls)
    first[size_t(cls)] = s.cache->first_fitting(cls, first[size_t(cls)], info.n_tokens);
  try {
    stored.clear();
    s.cache->restore(seq, info.n_tokens, first, info.exact_pages, info.shift, info.keep_pages);
    for (const StateRecord& record : reader.records()) {
      const graph::KvSpec& spec = s.graph.kv[size_t(record.kv)];
      if (record.tokens || record.page < first[spec.window > 0]) continue;
      PageRows(spec, record)
          .write(s.model->backend(), s.cache->page(seq, record.kv, record.page, record.exact()),
                 reader.read(record));
    }
  } catch (...) {
    s.cache->truncate(seq, 0);
    throw;
  }
  stored = std::move(tokens);
}

}  // namespace kvasir::engine
