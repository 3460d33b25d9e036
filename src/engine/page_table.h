// Physical pages of one layer class (global or sliding) shared by all its caches: which are free, which are used by how many
// sequences, and where each sequence's pages lie.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace kvasir::engine {

class PagePool {
 public:
  explicit PagePool(int n_pages);
  // -1 when none is free.
  int take();
  void share(int page) { ++uses_[size_t(page)]; }
  void release(int page);
  bool shared(int page) const { return uses_[size_t(page)] > 1; }
  int n_pages() const { return int(uses_.size()); }
  int n_free() const { return int(free_.size()); }

 private:
  std::vector<int> free_;
  std::vector<int> uses_;
};

// Logical page -> physical page of one sequence; -1 where nothing is stored any more.
struct PageTable {
  std::vector<int32_t> pages;

  void clear(PagePool& pool);
  // Drops pages [begin, end) of the table, renumbering what follows.
  void erase(int begin, int end, PagePool& pool);
  // Drops every page from `begin` on.
  void cut(int begin, PagePool& pool);
  // Frees pages before `begin` but keeps their places.
  void evict_before(int begin, PagePool& pool);
};

}  // namespace kvasir::engine
