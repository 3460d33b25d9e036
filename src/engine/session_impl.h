// What a session holds; for the files that implement it.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/kv_cache.h"
#include "engine/session.h"

namespace kvasir::engine {

struct Session::Impl {
  std::shared_ptr<Model> model;
  SessionOptions options;
  graph::Graph graph;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<backends::Executable> executable;
  std::vector<std::vector<Token>> tokens;  // by sequence
  std::vector<graph::Row> rows;

  void submit() { executable->submit({rows, cache->views()}); }
  const std::vector<Token>& sequence(int seq) const {
    if (seq < 0 || seq >= options.n_seq)
      fail(ErrorCode::kUsage, "sequence {} was asked for; this session has {} (0 to {})", seq, options.n_seq,
           options.n_seq - 1);
    return tokens[size_t(seq)];
  }
  std::vector<Token>& sequence(int seq) {
    return const_cast<std::vector<Token>&>(std::as_const(*this).sequence(seq));
  }
  // session_generate.cpp
  Token append_known(int seq, Token token, Sampler& sampler);
  int append_ahead(int seq, Token& next, int n, Sampler& sampler, const OnChosen& on_chosen, bool& more);
  bool may_undo(int pos) const;
  void place(int seq, StateInfo& info) const;  // session_state.cpp
  void check_token(Token token) const {
    if (token < 0 || token >= graph.n_vocab)
      fail(ErrorCode::kUsage, "token id {} is outside the vocabulary (0 to {})", token, graph.n_vocab - 1);
  }
  void check_room(int seq, size_t n) const {
    const size_t used = tokens[size_t(seq)].size();
    if (used + n > size_t(options.n_ctx))
      fail(ErrorCode::kRefused,
           "context full: {} tokens are stored and {} more were asked for; this session holds {} (a larger "
           "-c, or a shift, "
           "makes room)",
           used, n, options.n_ctx);
  }
};

}  // namespace kvasir::engine
