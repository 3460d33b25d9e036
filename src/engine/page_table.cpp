#include "engine/page_table.h"

#include <algorithm>

namespace kvasir::engine {

PagePool::PagePool(int n_pages) : uses_(size_t(n_pages), 0) {
  for (int page = n_pages - 1; page >= 0; --page) free_.push_back(page);
}

int PagePool::take() {
  if (free_.empty()) return -1;
  const int page = free_.back();
  free_.pop_back();
  uses_[size_t(page)] = 1;
  return page;
}

void PagePool::release(int page) {
  if (--uses_[size_t(page)] == 0) free_.push_back(page);
}

void PageTable::clear(PagePool& pool) { cut(0, pool); }

void PageTable::cut(int begin, PagePool& pool) {
  for (size_t i = size_t(begin); i < pages.size(); ++i)
    if (pages[i] >= 0) pool.release(pages[i]);
  if (size_t(begin) < pages.size()) pages.resize(size_t(begin));
}

void PageTable::erase(int begin, int end, PagePool& pool) {
  end = std::min(end, int(pages.size()));
  if (begin >= end) return;
  for (int i = begin; i < end; ++i)
    if (pages[size_t(i)] >= 0) pool.release(pages[size_t(i)]);
  pages.erase(pages.begin() + begin, pages.begin() + end);
}

void PageTable::evict_before(int begin, PagePool& pool) {
  for (int i = 0; i < std::min(begin, int(pages.size())); ++i) {
    if (pages[size_t(i)] < 0) continue;
    pool.release(pages[size_t(i)]);
    pages[size_t(i)] = -1;
  }
}

}  // namespace kvasir::engine
