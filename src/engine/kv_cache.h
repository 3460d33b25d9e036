// The KV cache of a session: pages on the device, tables of every sequence, and which pages are also there as
// written (exact): those that queries still to come read so (graph/kv_layout.h).
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "engine/page_table.h"
#include "graph/graph.h"
#include "graph/kv_layout.h"

namespace kvasir::engine {

class KvCache {
 public:
  // Allocates on `backend`. Throws Error{kNoMemory}.
  KvCache(backends::Backend& backend, std::vector<graph::KvSpec> specs, int n_ctx, int n_ubatch, int n_seq);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const backends::KvBuffers& buffers() const { return buffers_; }
  // As of the last reserve() of each sequence.
  const std::vector<graph::SequenceView>& views();
  uint64_t bytes() const { return bytes_; }

  // Before the reserve() calls of a step.
  void begin_step() { n_staged_ = {0, 0}; }
  // Makes room for positions [begin, end) of `seq`, evicting what no window can see from `begin` on, and
  // copying a page that another sequence shares before it is written.
  void reserve(int seq, int begin, int end);
  // The longest length <= n that `seq` can be cut to and go on from as if it had never been longer: the
  // window before it is still stored, and so is every exact page that its next token reads.
  int whole_prefix(int seq, int n) const;
  void truncate(int seq, int n);
  void copy(int from, int to);
  // Drops positions [begin, end) (multiples of a page); what follows keeps its stored keys and moves down.
  void shift(int seq, int begin, int end);
  // First page that was roped with the shift, or -1 when the sequence never shifted.
  int keep_pages(int seq) const;
  int shift_of(int seq) const { return sequences_[size_t(seq)].shift; }

  // For saved states (saved_state.h). The first page of `cls` from which all are stored.
  int first_page(int seq, int cls) const;
  // The first page of `cls` that fits when a sequence of n tokens is restored from `first` on.
  int first_fitting(int cls, int first, int n) const;
  // Page `page` of cache `kv`, or its exact page. Precondition: it is stored.
  std::byte* page(int seq, int kv, int page, bool exact) const;
  // Gives `seq` pages for n tokens, from first[cls] on, and the exact pages that they read; what they hold is
  // for the caller to write.
  void restore(int seq, int n, std::array<int, 2> first, const std::array<std::vector<int>, 2>& exact,
               int shift, int keep_pages);
  // Whether a page of class `cls` is kept exact.
  bool has_exact(int seq, int cls, int page) const;

 private:
  struct Sequence {
    PageTable tables[2];
    PageTable exact[2];                  // kept between steps
    std::vector<int32_t> step_exact[2];  // the same and what lives for one step only
    int shift = 0;
    int keep_pages = 0;
  };
  void own_page(int cls, int32_t& page);
  void own_exact_page(int cls, int32_t& page);
  void reserve_exact(Sequence& s, int cls, int first, int last);
  bool reads_exact(int cls, int query, int key) const {
    return graph::reads_exact(exact_first_[size_t(cls)], exact_last_[size_t(cls)], query, key);
  }

  backends::Backend& backend_;
  std::vector<graph::KvSpec> specs_;
  std::vector<PagePool> pools_;        // global, sliding
  std::vector<PagePool> exact_pools_;  // likewise; empty when no type of the class encodes whole pages
  std::array<int, 2> exact_first_{0, 0}, exact_last_{0, 0};
  std::array<int, 2> n_staged_{0, 0};
  int window_ = 0;                       // of the sliding class
  std::array<int, 2> ring_pages_{0, 0};  // by class: pages that one sequence has
  backends::KvBuffers buffers_;
  std::vector<size_t> page_bytes_, exact_bytes_;
  std::vector<Sequence> sequences_;
  std::vector<graph::SequenceView> views_;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir::engine
