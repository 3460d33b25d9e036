// Generation, a step ahead of the host where the backend chooses tokens itself.
#include <algorithm>

#include "engine/session_impl.h"

namespace kvasir::engine {

using graph::kPageTokens;

// Can a step at `pos` be undone, so that it may run before it is known to be wanted? Not when it fills a page
// (that is encoded), begins one, or lets go of a page that the window before it still needs.
bool Session::Impl::may_undo(int pos) const {
  if (pos % kPageTokens == 0 || pos % kPageTokens == kPageTokens - 1) return false;
  return std::ranges::all_of(graph.kv, [&](const graph::KvSpec& spec) {
    const auto first_page = [&](int p) { return std::max(0, p - spec.window + 1) / kPageTokens; };
    return spec.window == 0 || first_page(pos) == first_page(pos - 1);
  });
}

// Appends one token and waits; the token chosen after it.
Token Session::Impl::append_known(int seq, Token token, Sampler& sampler) {
  std::vector<Token>& stored = tokens[size_t(seq)];
  const int pos = int(stored.size());
  rows.assign(1, {token, pos, seq, 1});
  cache->begin_step();
  cache->reserve(seq, pos, pos + 1);
  if (executable->chooses()) {
    executable->submit_ahead({rows, cache->views()}, sampler.choice());
    const Token chosen = executable->chosen();
    sampler.advance();
    stored.push_back(token);
    return chosen;
  }
  submit();
  stored.push_back(token);
  if (const auto best = executable->best(0, sampler.candidates()); !best.empty()) return sampler.sample(best);
  return sampler.sample(executable->read(0));
}

// After append_known() gave `next`, which on_chosen has not seen: steps that start before their token is known
// here. Ends where a step cannot be undone, with `next` accepted but not appended, or when on_chosen ends it
// (`more` is false then).
int Session::Impl::append_ahead(int seq, Token& next, int n, Sampler& sampler, const OnChosen& on_chosen, bool& more) {
  std::vector<Token>& stored = tokens[size_t(seq)];
  int queued = 0, appended = 0;
  const auto queue = [&] {
    const int pos = int(stored.size()) + queued;
    if (appended + queued == n || !may_undo(pos)) return;
    rows.assign(1, {graph::kChosenToken, pos, seq, 1});
    cache->begin_step();
    cache->reserve(seq, pos, pos + 1);
    executable->submit_ahead({rows, cache->views()}, sampler.choice(queued));
    ++queued;
  };
  const auto drain = [&] {
    try {
      for (; queued > 0; --queued) executable->chosen();
    } catch (const Error&) {  // of a step that nobody asked for
    }
    cache->truncate(seq, int(stored.size()));
  };
  queue();
  while ((more = on_chosen(next)) && queued > 0) {
    queue();
    const Token accepted = next;
    --queued;
    next = executable->chosen();
    sampler.advance();
    stored.push_back(accepted);
    ++appended;
  }
  drain();
  return appended;
}

int Session::append_chosen(int seq, Token first, int n, Sampler& sampler, const OnChosen& on_chosen) {
  Impl& s = *impl_;
  s.sequence(seq);
  s.check_token(first);
  s.check_room(seq, size_t(std::max(n, 0)));
  if (sampler.candidates() == 0)
    fail(ErrorCode::kUsage, "this sampler needs every logit; append() and sample() give it them");
  const bool ahead = s.executable->chooses();
  bool more = true;
  int appended = 0;
  for (Token next = first; more && appended < n;) {
    next = s.append_known(seq, next, sampler);
    ++appended;
    if (ahead)
      appended += s.append_ahead(seq, next, n - appended, sampler, on_chosen, more);
    else
      more = on_chosen(next);
  }
  return appended;
}

int Session::append_greedy(int seq, Token first, int n, const OnChosen& on_chosen) {
  Sampler greedy({});
  return append_chosen(seq, first, n, greedy, on_chosen);
}

}  // namespace kvasir::engine
