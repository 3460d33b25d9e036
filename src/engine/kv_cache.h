// The KV cache of a session: pages on the device, tables of every sequence, and the rules of DESIGN 4 for the types that
// encode a token when it is written.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "engine/page_table.h"
#include "graph/graph.h"

namespace kvasir::engine {

class KvCache {
 public:
  // Allocates on `backend`. Throws Error{kNoMemory}.
  KvCache(backends::Backend& backend, std::vector<graph::KvSpec> specs, int n_ctx, int n_ubatch, int n_seq);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const backends::KvBuffers& buffers() const { return buffers_; }
  const std::vector<graph::SequenceView>& views();
  uint64_t bytes() const { return bytes_; }

  // Makes room for positions [begin, end) of `seq`, evicting what no window can see from `begin` on, and copying a page that
  // another sequence shares before it is written.
  void reserve(int seq, int begin, int end);
  // The longest length <= n that `seq` can be cut to and go on from.
  int whole_prefix(int seq, int n) const;
  void truncate(int seq, int n);
  void copy(int from, int to);
  // Drops positions [begin, end) (multiples of a page); what follows keeps its stored keys and moves down.
  void shift(int seq, int begin, int end);
  // First page that was roped with the shift, or -1 when the sequence never shifted.
  int keep_pages(int seq) const;

 private:
  struct Sequence {
    PageTable tables[2];
    int shift = 0;
    int keep_pages = 0;
  };
  void own_page(int cls, int32_t& page);

  backends::Backend& backend_;
  std::vector<graph::KvSpec> specs_;
  std::vector<PagePool> pools_;  // global, sliding
  int window_ = 0;               // of the sliding class
  backends::KvBuffers buffers_;
  std::vector<size_t> page_bytes_;
  std::vector<Sequence> sequences_;
  std::vector<graph::SequenceView> views_;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir::engine
