// --prompt-cache: the session's state in a file, so that a later run computes only what is new of its prompt.
#pragma once
#include <string>
#include <vector>

#include "generation.h"

namespace kvasir::app {

std::vector<Flag> prompt_cache_flags();  // --prompt-cache --prompt-cache-all --prompt-cache-ro

class PromptCache {
 public:
  // Throws Error{kUsage} for flags that miss each other and Error{kFailed} for a place that cannot be
  // written: before any work is done.
  explicit PromptCache(const Args& args);

  // True when the file holds a state, so that a prompt may be left out: it is then what the file holds.
  bool there() const { return there_; }
  // Types that the command line left to kvasir are those of the state that is there.
  void choose_types(const Args& args, const engine::Model& model, engine::SessionOptions& options,
                    bool quiet) const;
  // Throws as Session::load_state does.
  void load(engine::Session& session, bool quiet);
  // Has the state saved once the prompt is in the session, when the file does not have all of it.
  void watch(const engine::Session& session, const std::vector<engine::Token>& prompt,
             engine::GenerateOptions& options, bool quiet) const;
  // Saves the whole session, up to the last token of the result, if that was asked for.
  void finish(engine::Session& session, const engine::GenerateResult& result) const;

 private:
  std::string path_;
  bool all_ = false, read_only_ = false, there_ = false;
};

}  // namespace kvasir::app
