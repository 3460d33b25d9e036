// Where saved states lie: a file or memory.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "engine/session.h"

namespace kvasir::engine {

// Throws Error{kBadFile} when there is no such file or it cannot be read.
std::unique_ptr<StateSource> open_state_file(const std::string& path);
// `bytes` must outlive it.
std::unique_ptr<StateSource> state_in_memory(std::span<const std::byte> bytes);

// The cache types and exact tokens (kv_exact_first, kv_exact_last) that a session needs to load the state in
// a file; the rest of `options` is left alone. Throws as Session::load_state.
void take_state_types(const Model& model, const std::string& path, SessionOptions& options);

// The file is replaced as a whole: a failure (Error{kFailed}, a full disk) leaves what was there.
void save_state_file(const Session& session, int seq, const std::string& path);
void load_state_file(Session& session, int seq, const std::string& path);

}  // namespace kvasir::engine
