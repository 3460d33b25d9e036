// Cache types of a session: as asked for, or as decided; and what is proved of the kernels that then run.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "decide/decision.h"
#include "engine/session.h"
#include "options.h"

namespace kvasir::app {

// "auto" for both sides and no --kv-swa: the decision chooses. One side alone given: q8_0 for the other.
bool types_are_automatic(const Args& args);

struct CacheQuestion {
  int n_ctx = 0, n_ubatch = 0;
  bool flash = true;
  double kl_max = decide::kDefaultKlMax;
  bool prefer_exact = false, allow_unverified = false;
};
CacheQuestion cache_question(const Args& args);
// The decided row for the backend that holds the model; its types are q8_0/q8_0 unless evidence, measured
// quality and gain speak for others.
decide::Row decide_cache(const engine::Model& model, const CacheQuestion& question);

// What is known of the kernels a session runs. Runs the self-check of those that no record covers.
class SessionEvidence {
 public:
  // Throws Error{kFailed} when a kernel is wrong here, Error{kRefused} when a record says so and it was not
  // allowed.
  SessionEvidence(const engine::Session& session, bool allow_unverified);

  // The load lines, each with its evidence.
  const std::vector<std::string>& lines() const { return lines_; }
  const std::string& self_check() const { return self_check_; }
  // To be said in every output while the session lives; empty: nothing unproved but stock.
  const std::string& warning() const { return warning_; }
  nlohmann::ordered_json json() const;
  // Both on stderr: lines unless quiet, the warning always.
  void show(bool quiet) const;

 private:
  std::vector<std::string> lines_;
  std::string self_check_, warning_, state_, record_;
};

}  // namespace kvasir::app
