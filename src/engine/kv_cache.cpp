#include "engine/kv_cache.h"

#include <algorithm>

#include "base/error.h"
#include "graph/kv_layout.h"

namespace kvasir::engine {

using graph::kPageTokens;

KvCache::KvCache(backends::Backend& backend, std::vector<graph::KvSpec> specs, int n_ctx, int n_ubatch,
                 int n_seq)
    : backend_(backend), specs_(std::move(specs)), sequences_(size_t(n_seq)), views_(size_t(n_seq)) {
  int n_pages[2] = {0, 0}, n_exact[2] = {0, 0};
  for (const graph::KvSpec& spec : specs_) {
    const int cls = spec.window > 0;
    ring_pages_[size_t(cls)] = std::max(ring_pages_[size_t(cls)], graph::kv_pages(spec, n_ctx, n_ubatch));
    n_pages[cls] = std::max(n_pages[cls], graph::kv_pages(spec, n_ctx, n_ubatch) * n_seq);
    n_exact[cls] = std::max(n_exact[cls], graph::kv_exact_pages(spec, n_ctx) * n_seq);
    window_ = std::max(window_, spec.window);
    exact_first_[size_t(cls)] = spec.exact_first;
    exact_last_[size_t(cls)] = spec.exact_last;
  }
  for (int cls = 0; cls < 2; ++cls) {
    pools_.emplace_back(n_pages[cls]);
    exact_pools_.emplace_back(n_exact[cls]);
  }
  for (const graph::KvSpec& spec : specs_) {
    page_bytes_.push_back(graph::kv_page_bytes(spec));
    const int pages = n_pages[spec.window > 0];
    buffers_.n_pages.push_back(pages);
    buffers_.data.push_back(backend_.alloc(page_bytes_.back() * size_t(pages)));
    bytes_ += page_bytes_.back() * size_t(pages);
    exact_bytes_.push_back(graph::kv_exact_page_bytes(spec));
    const int exact = exact_bytes_.back() > 0 ? n_exact[spec.window > 0] : 0;
    buffers_.n_exact.push_back(exact);
    buffers_.exact.push_back(exact > 0 ? backend_.alloc(exact_bytes_.back() * size_t(exact)) : nullptr);
    bytes_ += exact_bytes_.back() * size_t(exact);
  }
}

KvCache::~KvCache() {
  for (std::byte* buffer : buffers_.data) backend_.free(buffer);
  for (std::byte* buffer : buffers_.exact)
    if (buffer) backend_.free(buffer);
}

const std::vector<graph::SequenceView>& KvCache::views() {
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const Sequence& seq = sequences_[s];
    views_[s].page_table = {std::span<const int32_t>(seq.tables[0].pages),
                            std::span<const int32_t>(seq.tables[1].pages)};
    views_[s].exact_table = {std::span<const int32_t>(seq.step_exact[0]),
                             std::span<const int32_t>(seq.step_exact[1])};
    views_[s].shift = seq.shift;
    views_[s].keep_pages = seq.keep_pages;
    for (int cls = 0; cls < 2; ++cls)
      views_[s].first_pos[size_t(cls)] = first_page(int(s), cls) * kPageTokens;
  }
  return views_;
}

void KvCache::own_page(int cls, int32_t& page) {
  const int fresh = pools_[size_t(cls)].take();
  if (fresh < 0) fail(ErrorCode::kNoMemory, "the KV cache has no free page left");
  if (page >= 0) {
    for (size_t i = 0; i < specs_.size(); ++i)
      if ((specs_[i].window > 0) == (cls == 1))
        backend_.copy(buffers_.data[i] + size_t(fresh) * page_bytes_[i],
                      buffers_.data[i] + size_t(page) * page_bytes_[i], page_bytes_[i]);
    pools_[size_t(cls)].release(page);
  }
  page = fresh;
}

void KvCache::own_exact_page(int cls, int32_t& page) {
  PagePool& pool = exact_pools_[size_t(cls)];
  if (page >= 0 && !pool.shared(page)) return;
  const int fresh = pool.take();
  if (fresh < 0) fail(ErrorCode::kNoMemory, "the KV cache has no free exact page left");
  if (page >= 0) {
    for (size_t i = 0; i < specs_.size(); ++i)
      if ((specs_[i].window > 0) == (cls == 1) && exact_bytes_[i] > 0)
        backend_.copy(buffers_.exact[i] + size_t(fresh) * exact_bytes_[i],
                      buffers_.exact[i] + size_t(page) * exact_bytes_[i], exact_bytes_[i]);
    pool.release(page);
  }
  page = fresh;
}

// The step writes pages [first, last]. A page that rows after the step read exactly stays in the cache, as
// does the first, which may hold rows already; the others are for the step alone.
void KvCache::reserve_exact(Sequence& s, int cls, int first, int last) {
  PagePool& pool = exact_pools_[size_t(cls)];
  if (pool.n_pages() == 0) return;
  std::vector<int32_t>& kept = s.exact[cls].pages;
  kept.resize(size_t(last) + 1, -1);
  for (int p = 0; p < first; ++p) {
    if (kept[size_t(p)] < 0 || reads_exact(cls, first, p)) continue;
    pool.release(kept[size_t(p)]);
    kept[size_t(p)] = -1;
  }
  s.step_exact[cls] = kept;
  for (int p = first; p <= last; ++p) {
    if (p == first || reads_exact(cls, last, p)) {
      own_exact_page(cls, kept[size_t(p)]);
      s.step_exact[cls][size_t(p)] = kept[size_t(p)];
    } else {
      s.step_exact[cls][size_t(p)] = int32_t(pool.n_pages() + n_staged_[size_t(cls)]++);
    }
  }
}

void KvCache::reserve(int seq, int begin, int end) {
  Sequence& s = sequences_[size_t(seq)];
  const int first = begin / kPageTokens, last = (end - 1) / kPageTokens;
  for (int cls = 0; cls < 2; ++cls) {
    if (pools_[size_t(cls)].n_pages() == 0) continue;
    PageTable& table = s.tables[cls];
    if (cls == 1) table.evict_before(std::max(0, begin - window_ + 1) / kPageTokens, pools_[1]);
    if (int(table.pages.size()) <= last) table.pages.resize(size_t(last) + 1, -1);
    for (int lp = first; lp <= last; ++lp) {
      int32_t& page = table.pages[size_t(lp)];
      if (page < 0 || pools_[size_t(cls)].shared(page)) own_page(cls, page);
    }
    reserve_exact(s, cls, first, last);
  }
}

int KvCache::whole_prefix(int seq, int n) const {
  const Sequence& s = sequences_[size_t(seq)];
  n = std::max(n, 0);
  const auto exact_there = [&](int length) {
    const int query = length / kPageTokens;
    for (int cls = 0; cls < 2; ++cls) {
      if (exact_pools_[size_t(cls)].n_pages() == 0) continue;
      for (int p = 0; p * kPageTokens < length; ++p)
        if (reads_exact(cls, query, p) &&
            (p >= int(s.exact[cls].pages.size()) || s.exact[cls].pages[size_t(p)] < 0))
          return false;
    }
    return true;
  };
  if (!exact_there(n)) n = n / kPageTokens * kPageTokens;
  if (!exact_there(n)) return 0;
  if (n == 0 || pools_[1].n_pages() == 0) return n;
  // The next query stands at position n: its window must still be stored.
  for (int lp = std::max(0, n - window_ + 1) / kPageTokens; lp <= (n - 1) / kPageTokens; ++lp)
    if (lp >= int(s.tables[1].pages.size()) || s.tables[1].pages[size_t(lp)] < 0) return 0;
  return n;
}

void KvCache::truncate(int seq, int n) {
  Sequence& s = sequences_[size_t(seq)];
  const int keep = (n + kPageTokens - 1) / kPageTokens;
  for (size_t cls = 0; cls < 2; ++cls) {
    s.tables[cls].cut(keep, pools_[cls]);
    s.exact[cls].cut(keep, exact_pools_[cls]);
  }
  if (n == 0) s.shift = s.keep_pages = 0;
}

void KvCache::copy(int from, int to) {
  if (from == to) return;
  truncate(to, 0);
  const Sequence& source = sequences_[size_t(from)];
  Sequence& target = sequences_[size_t(to)];
  for (int cls = 0; cls < 2; ++cls) {
    target.tables[cls] = source.tables[cls];
    for (int32_t page : target.tables[cls].pages)
      if (page >= 0) pools_[size_t(cls)].share(page);  // written pages are copied on the first write
    target.exact[cls] = source.exact[cls];
    for (int32_t page : target.exact[cls].pages)
      if (page >= 0) exact_pools_[size_t(cls)].share(page);
  }
  target.shift = source.shift;
  target.keep_pages = source.keep_pages;
}

void KvCache::shift(int seq, int begin, int end) {
  Sequence& s = sequences_[size_t(seq)];
  for (size_t cls = 0; cls < 2; ++cls) {
    s.tables[cls].erase(begin / kPageTokens, end / kPageTokens, pools_[cls]);
    s.exact[cls].erase(begin / kPageTokens, end / kPageTokens, exact_pools_[cls]);
  }
  s.keep_pages = begin / kPageTokens;
  s.shift += end - begin;
}

int KvCache::keep_pages(int seq) const {
  const Sequence& s = sequences_[size_t(seq)];
  return s.shift == 0 ? -1 : s.keep_pages;
}

int KvCache::first_page(int seq, int cls) const {
  const std::vector<int32_t>& pages = sequences_[size_t(seq)].tables[cls].pages;
  return int(pages.rend() - std::find(pages.rbegin(), pages.rend(), -1));
}

int KvCache::first_fitting(int cls, int first, int n) const {
  const int n_pages = (n + kPageTokens - 1) / kPageTokens;
  return std::max(first, n_pages - ring_pages_[size_t(cls)]);
}

std::byte* KvCache::page(int seq, int kv, int page, bool exact) const {
  const Sequence& s = sequences_[size_t(seq)];
  const size_t cls = specs_[size_t(kv)].window > 0, i = size_t(kv);
  const int at = (exact ? s.exact : s.tables)[cls].pages[size_t(page)];
  return exact ? buffers_.exact[i] + size_t(at) * exact_bytes_[i]
               : buffers_.data[i] + size_t(at) * page_bytes_[i];
}

bool KvCache::has_exact(int seq, int cls, int page) const {
  const std::vector<int32_t>& pages = sequences_[size_t(seq)].exact[cls].pages;
  return page < int(pages.size()) && pages[size_t(page)] >= 0;
}

void KvCache::restore(int seq, int n, std::array<int, 2> first,
                      const std::array<std::vector<int>, 2>& exact_pages, int shift, int keep_pages) {
  truncate(seq, 0);
  Sequence& s = sequences_[size_t(seq)];
  s.shift = shift;
  s.keep_pages = keep_pages;
  const int n_pages = (n + kPageTokens - 1) / kPageTokens;
  for (int cls = 0; cls < 2; ++cls) {
    if (pools_[size_t(cls)].n_pages() == 0) continue;
    std::vector<int32_t>& pages = s.tables[cls].pages;
    pages.assign(size_t(n_pages), -1);
    for (int p = first[size_t(cls)]; p < n_pages; ++p) own_page(cls, pages[size_t(p)]);
    if (exact_pools_[size_t(cls)].n_pages() == 0) continue;
    std::vector<int32_t>& exact = s.exact[cls].pages;
    exact.assign(size_t(n_pages), -1);
    for (const int p : exact_pages[size_t(cls)])
      if (p >= first[size_t(cls)]) own_exact_page(cls, exact[size_t(p)]);
  }
}

}  // namespace kvasir::engine
