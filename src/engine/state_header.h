// The head of a saved state: what it is of, as JSON.
#pragma once
#include <string>
#include <string_view>

#include "engine/saved_state.h"

namespace kvasir::engine {

std::string header_text(const StateInfo& info);

// The caches of `mine` with the types and exact pages that `text` names. Throws as read_header.
std::vector<graph::KvSpec> read_cache_types(std::string_view text, const StateInfo& mine,
                                            const std::string& name);

// What `text` says, once it is of `mine` (model and caches) and fits n_ctx tokens; specs are mine. Throws
// Error{kBadFile} naming a field that is missing or out of range, Error{kRefused} naming what differs and
// what would work. `name` begins every message.
StateInfo read_header(std::string_view text, const StateInfo& mine, int n_ctx, const std::string& name);

}  // namespace kvasir::engine
