// The saved state of a sequence as bytes: what they mean, how they are laid out (docs/formats.md), and every
// check before they are believed. Nothing here knows a backend, a cache or a file.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "graph/graph.h"

namespace kvasir::engine {

inline constexpr uint32_t kStateVersion = 2;  // 2: keys are balanced (models/key_balance.h)

// Where bytes go, in order.
using StateSink = std::function<void(std::span<const std::byte>)>;

// Where they come from.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual const std::string& name() const = 0;  // for messages
  virtual uint64_t size() const = 0;
  // Fills `out`, which lies inside size(). Throws Error{kBadFile} when that cannot be read.
  virtual void read(uint64_t offset, std::span<std::byte> out) = 0;
};

// What a state is of.
struct StateInfo {
  std::string model_hash, model_name;
  std::vector<graph::KvSpec> specs;  // by cache
  int n_tokens = 0;
  int shift = 0, keep_pages = 0;        // graph::SequenceView
  std::array<int, 2> first_page{0, 0};  // by class (global, sliding): first page that is stored
  // By class: the exact pages, rising. Of those that the next token reads so a shift may have left out some.
  std::array<std::vector<int>, 2> exact_pages;
};

// One run of bytes with its own checksum: the tokens, or the rows of one side of one page of one cache.
struct StateRecord {
  bool tokens = false;
  backends::PagePart part{};
  int kv = 0;  // index of the cache
  int layer = -1, page = 0, rows = 0, rope_base = 0;
  uint64_t offset = 0;  // of the record's head in the state
  uint64_t bytes = 0;   // after the head

  bool exact() const {
    return part == backends::PagePart::kExactKeys || part == backends::PagePart::kExactValues;
  }
  bool keys() const { return part == backends::PagePart::kKeys || part == backends::PagePart::kExactKeys; }
  // "layer 4, keys, page 3 (tokens 192 to 255)"
  std::string text() const;
};

// The records of a state, offsets from 0: the tokens first.
std::vector<StateRecord> state_records(const StateInfo& info);

// The exact pages that the token after n_tokens reads in caches of class `cls`, were all of them there.
std::vector<int> exact_pages_of(std::span<const graph::KvSpec> specs, int cls, int n_tokens, int first_page);

// Writes a state: the head first, then every record of records() with its payload: the tokens as int32, rows
// as [kv_head][row][bytes of a row].
class StateWriter {
 public:
  StateWriter(const StateInfo& info, StateSink sink);
  uint64_t total_bytes() const { return total_; }
  const std::vector<StateRecord>& records() const { return records_; }
  void write_head();
  void write(const StateRecord& record, std::span<const std::byte> payload);

 private:
  StateSink sink_;
  std::vector<StateRecord> records_;
  std::vector<std::byte> head_;
  uint64_t total_ = 0;
};

// The caches of `mine` with the types and exact pages that a state of the same model has, from its head
// alone; so that a session for it can be opened. Throws as StateReader.
std::vector<graph::KvSpec> state_caches(StateSource& source, const StateInfo& mine);

// Reads one. `mine` says what the state must be of (model and caches), n_ctx how many tokens there is room
// for. Everything that follows from the head alone is checked here. Throws Error{kBadFile} for bytes that are
// no whole state of this version, Error{kRefused} for a state of something else.
class StateReader {
 public:
  StateReader(StateSource& source, const StateInfo& mine, int n_ctx);
  const StateInfo& info() const { return info_; }  // of the state
  const std::vector<StateRecord>& records() const { return records_; }
  // The payload of a record, its checksum verified: Error{kBadFile} names the page.
  std::span<const std::byte> read(const StateRecord& record);

 private:
  void check_size(uint64_t total) const;

  StateSource& source_;
  StateInfo info_;
  std::vector<StateRecord> records_;
  std::vector<std::byte> buffer_;
};

}  // namespace kvasir::engine
