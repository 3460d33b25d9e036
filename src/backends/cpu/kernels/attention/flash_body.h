// Flash attention over paged keys and values, generic over the vector type; see attention.h for the formula
// and kernels.h for the parts. Everything a row goes through is lane-wise in an order fixed by position, so
// that its bits do not depend on the rows beside it. Included once by each ISA file, into an unnamed
// namespace.
#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/math_body.h"
#include "base/mutation.h"
#include "graph/kv_layout.h"

namespace kvasir::cpu {
namespace {

// Bump allocator over scratch memory; every block starts on a cache line.
struct Arena {
  std::byte* next;
  template <typename T>
  T* take(size_t n) {
    T* block = reinterpret_cast<T*>(next);
    next += (n * sizeof(T) + 63) / 64 * 64;
    return block;
  }
};

// Running (max, sum, unnormalised output) of the rows of a block; maxima in units of log2.
struct State {
  float* m;
  float* l;
  float* out;
};

State take_state(Arena& arena, int head_dim) {
  return {arena.take<float>(kBlockRows), arena.take<float>(kBlockRows),
          arena.take<float>(size_t(kBlockRows) * head_dim)};
}

constexpr float kMinusInf = -__builtin_inff();

void clear(const State& s, int n_rows, int head_dim) {
  for (int i = 0; i < kBlockRows; ++i) s.m[i] = kMinusInf;
  for (int i = 0; i < kBlockRows; ++i) s.l[i] = 0;
  __builtin_memset(s.out, 0, sizeof(float) * size_t(n_rows) * head_dim);
}

// Factors that bring (m, l) and a part (pm, pl) to their common maximum; updates m and l. An empty side gets
// factor 0, and 2^0 is exactly 1, so that merging with nothing changes no bit.
template <typename Vec>
void merge_factors(float* m, float* l, const float* pm, const float* pl, int n, float* keep, float* blend) {
  for (int i = 0; i < n; i += Vec::kN) {
    const auto old = Vec::load(m + i), part = Vec::load(pm + i);
    const auto top = Vec::max(old, part);
    const auto base = Vec::max(top, Vec::set1(-3e38f));  // both empty: keeps -inf - -inf away
    auto a = exp2<Vec>(Vec::sub(old, base));
    const auto b = exp2<Vec>(Vec::sub(part, base));
    if (mutated(Mutation::kMergeKeeps)) a = Vec::set1(1.0f);
    Vec::store(keep + i, a);
    Vec::store(blend + i, b);
    Vec::store(l + i, Vec::fma(Vec::load(pl + i), mutated(Mutation::kMergeSum) ? Vec::set1(1.0f) : b,
                               Vec::mul(Vec::load(l + i), a)));
    Vec::store(m + i, top);
  }
}

template <typename Vec>
inline typename Vec::F merged(typename Vec::F old, typename Vec::F keep, typename Vec::F part,
                              typename Vec::F blend) {
  return Vec::fma(part, blend, Vec::mul(old, keep));
}

template <typename Vec>
void merge_out(float* out, const float* part, float keep, float blend, int n) {
  const auto a = Vec::set1(keep), b = Vec::set1(blend);
  for (int i = 0; i < n; i += Vec::kN)
    Vec::store(out + i, merged<Vec>(Vec::load(out + i), a, Vec::load(part + i), b));
}

// Turns scores of columns [lo, hi) into weights 2^(s - max) in place, zero in the rest of [zero_lo, zero_hi).
template <typename Vec>
void softmax_row(float* s, int lo, int hi, int zero_lo, int zero_hi, float cap, float* max, float* sum) {
  constexpr int n = Vec::kN;
  const int first = lo / n * n, last = (hi + n - 1) / n * n;
  for (int i = zero_lo / n * n; i < first; i += n) Vec::store(s + i, Vec::zero());
  for (int i = last; i < zero_hi; i += n) Vec::store(s + i, Vec::zero());
  auto top = Vec::set1(kMinusInf);
  for (int i = first; i < last; i += n) {
    auto x = Vec::load(s + i);
    if (cap > 0 && !mutated(Mutation::kSoftcapSkipped)) x = softcap<Vec>(x, cap);
    if (i < lo || i + n > hi) x = Vec::keep(x, lo - i, hi - i, Vec::set1(kMinusInf));
    Vec::store(s + i, x);
    top = Vec::max(top, x);
  }
  *max = Vec::reduce_max(top);
  auto total = Vec::zero();
  const auto base = Vec::set1(*max);
  for (int i = first; i < last; i += n) {
    const auto e = exp2<Vec>(Vec::sub(Vec::load(s + i), base));
    Vec::store(s + i, e);
    total = Vec::add(total, e);
  }
  *sum = Vec::reduce_add(total);
}

// The result of a row whose outputs lie in stripes; x is used up. Scaled before it is moved: a load does not
// wait for several narrower stores that way.
template <typename Vec>
void finish_row(float* x, float sum, int n, int stripes, float* out) {
  if (stripes == 1) return scale_out<Vec>(x, sum, n, out);
  scale_out<Vec>(x, sum, n, x);
  from_stripes(x, n, stripes, out);
}

template <typename Vec>
struct Flash {
  const FlashItem& item;
  const AttentionArgs& args;
  int group_heads;                          // query heads a KV head
  size_t key_bytes, region;                 // of one head's key region; where this KV head starts in a page
  size_t exact_keys = 0, exact_region = 0;  // the same of an exact page
  // Packed: roped at pos; roped at pos + shift. The second pair meets exact pages, packed once there are any.
  std::byte *query[2], *exact_query[2];
  bool exact_packed = false;
  float* scores;                // [kBlockRows][kChunk]
  float *m, *l, *keep, *blend;  // of one chunk
  State span, total;
  float* mixed = nullptr;  // [kBlockRows][head_dim]: sums of a chunk that is partly exact
  std::byte* producer;
  RowTile tiles[kBlockRows];
  int n_tiles = 0;
  int lo[kBlockRows], hi[kBlockRows];  // positions each row sees
  float ones[kBlockRows];              // factors of sums that start from nothing

  Flash(const FlashItem& it, std::byte* scratch) : item(it), args(*it.args) {
    group_heads = args.n_head / args.n_kv;
    const size_t head = args.page_bytes / size_t(args.n_kv);
    key_bytes = size_t(graph::kPageTokens) * item.key_row;
    region = head * size_t(mutated(Mutation::kKvHead) ? 0 : item.kv_head);
    Arena arena{scratch};
    const size_t query_bytes = item.keys->query_bytes(args.head_dim);
    for (auto& q : query) q = arena.take<std::byte>(query_bytes);
    for (auto& q : exact_query)
      q = item.exact_keys ? arena.take<std::byte>(item.exact_keys->query_bytes(args.head_dim)) : nullptr;
    if (args.exact.page_bytes) {
      exact_region = args.exact.page_bytes / size_t(args.n_kv) * size_t(item.kv_head);
      exact_keys = item.exact_keys ? sizeof(uint16_t) * size_t(graph::kPageTokens) * args.head_dim : 0;
    }
    scores = arena.take<float>(size_t(kBlockRows) * kChunk);
    for (float** p : {&m, &l, &keep, &blend}) *p = arena.take<float>(kBlockRows);
    span = take_state(arena, args.head_dim);
    total = take_state(arena, args.head_dim);
    if (item.exact_values) mixed = arena.take<float>(size_t(kBlockRows) * args.head_dim);
    producer = arena.take<std::byte>(kProducerScratch);
  }

  int token(int row) const { return (item.row + row) / group_heads; }
  int head(int row) const { return item.kv_head * group_heads + (item.row + row) % group_heads; }

  void make_tiles() {
    for (int row = 0; row < item.n_rows; ++row) {
      const Visible v = visible(args, args.rows[token(row)].pos);
      lo[row] = v.begin;
      hi[row] = v.end;
      if (mutated(Mutation::kWindowWide)) lo[row] -= v.begin > 0;
      if (mutated(Mutation::kWindowNarrow)) lo[row] += v.begin > 0;
      if (mutated(Mutation::kLastToken)) hi[row] -= v.end > 1;
    }
    const bool by_page = item.exact_keys || item.exact_values;
    for (int row = 0; row < item.n_rows;) {
      RowTile& tile = tiles[n_tiles++];
      tile = {row, 1, lo[row], 0, row_page(row)};
      while (tile.n < Vec::kTileRows && row + tile.n < item.n_rows &&
             (!by_page || row_page(row + tile.n) == tile.page))
        ++tile.n;
      tile.hi = hi[row + tile.n - 1];
      row += tile.n;
    }
  }

  int row_page(int row) const { return args.rows[token(row)].pos / graph::kPageTokens; }

  // The exact page at index p as rows of page `query` see it, or nullptr when they read it encoded.
  const std::byte* exact_page(int query, int p) const {
    if (mutated(Mutation::kExactAsCoded) && p != query) return nullptr;
    if (!graph::reads_exact(args.exact_first, args.exact_last + mutated(Mutation::kExactLate), query, p) ||
        size_t(p) >= args.exact_table.size() || args.exact_table[p] < 0)
      return nullptr;
    return args.exact.page(args.exact_table[p]) + exact_region;
  }

  // Packs both forms of the queries for `keys`.
  void pack_queries(const KeyProducer& keys, std::byte* const* packed) const {
    const float scale = args.scale * 1.44269504088896341f;  // scores in units of log2
    const float* sources[2] = {args.q, args.q_shifted ? args.q_shifted : nullptr};
    for (int form = 0; form < 2; ++form) {
      if (!sources[form]) continue;
      for (int t = 0; t < n_tiles; ++t) {
        const float* rows[Vec::kTileRows];
        alignas(64) float rotated[Vec::kTileRows][kMaxHeadDim];
        for (int i = 0; i < tiles[t].n; ++i) {
          const int row = tiles[t].row + i;
          rows[i] = sources[form] + int64_t(token(row)) * args.q_stride + int64_t(head(row)) * args.head_dim;
          if (mutated(Mutation::kHeadMix) && group_heads > 1)
            rows[i] += head(row) % 2 ? -args.head_dim : args.head_dim;
          if (!item.rotate) continue;
          item.rotate(formats::kKeys, rows[i], rotated[i], args.head_dim);
          rows[i] = rotated[i];
        }
        keys.pack_query(rows, tiles[t], args.head_dim, scale, packed[form]);
      }
    }
  }

  // Key region of the page at index p, or nullptr when it is not stored.
  const std::byte* page(int p) const {
    if (p < 0 || size_t(p) >= args.page_table.size() || args.page_table[p] < 0) return nullptr;
    return args.pages + size_t(args.page_table[p]) * args.page_bytes + region;
  }

  // Says what comes after key group `group` (absolute index) of this chunk.
  void set_next(ScoreTask& task, int group, int end_group) const {
    task.next = group + 1 < end_group ? page((group + 1) / 2) : nullptr;
    task.next_group = (group + 1) % 2;
    for (int i = 0; i < 4; ++i) {
      const std::byte* keys = page(chunk_begin / 64 + i);
      task.values[i] = (keys ? keys : task.keys) + key_bytes;
    }
  }

  int chunk_begin = 0;

  void score_chunk() {
    const int from = tiles[0].lo > chunk_begin ? tiles[0].lo : chunk_begin;
    const int last = tiles[n_tiles - 1].hi;
    const int to = last < chunk_begin + kChunk ? last : chunk_begin + kChunk;
    const int end_group = (to + kGroupKeys - 1) / kGroupKeys;
    for (int group = from / kGroupKeys; group < end_group; ++group) {
      const int p = group / 2, key = group * kGroupKeys;
      const std::byte* keys = page(p);
      if (!keys) continue;
      int t0 = 0, t1 = n_tiles;  // tiles rise in position: those that see the group are contiguous
      while (t0 < t1 && tiles[t0].hi <= key) ++t0;
      while (t1 > t0 && tiles[t1 - 1].lo >= key + kGroupKeys) --t1;
      if (t0 == t1) continue;
      const bool shifted = args.q_shifted && p >= args.keep_pages;
      ScoreTask task{};
      task.group = group % 2;
      task.head_dim = args.head_dim;
      task.scores = scores + (key - chunk_begin);
      task.scratch = producer;
      task.tcq = args.tcq;
      task.tiles = tiles + t0;
      // Tiles of the page itself and those shortly after it read it exactly: they come first.
      for (; item.exact_keys && t0 < t1 && exact_page(tiles[t0].page, p); ++t0) ++task.n_tiles;
      if (task.n_tiles > 0) score_exact(task, exact_page(tiles[t0 - 1].page, p), exact_query[shifted]);
      if (t0 == t1) continue;
      task.keys = keys;
      task.query = query[shifted];
      task.tiles = tiles + t0;
      task.n_tiles = t1 - t0;
      set_next(task, group, end_group);
      item.keys->score(task);
    }
  }

  void score_exact(ScoreTask task, const std::byte* keys, const std::byte* packed) {
    if (!exact_packed) pack_queries(*item.exact_keys, exact_query);
    exact_packed = true;
    task.keys = keys;
    task.query = packed;
    for (auto& values : task.values) values = keys;
    item.exact_keys->score(task);
  }

  void softmax_chunk() {
    float cap = args.softcap * 1.44269504088896341f;
    if (mutated(Mutation::kSoftcapOff)) cap *= 1.02f;
    for (int i = 0; i < kBlockRows; ++i) m[i] = kMinusInf;
    for (int i = 0; i < kBlockRows; ++i) l[i] = 0;
    for (int t = 0; t < n_tiles; ++t) {
      const int zero_lo = clip(tiles[t].lo), zero_hi = clip(tiles[t].hi);
      if (zero_lo >= zero_hi) continue;
      for (int row = tiles[t].row; row < tiles[t].row + tiles[t].n; ++row) {
        const int a = clip(lo[row]), b = clip(hi[row]);
        if (a < b)
          softmax_row<Vec>(scores + row * kChunk, a, b, zero_lo, zero_hi, cap, m + row, l + row);
        else
          __builtin_memset(scores + row * kChunk, 0, sizeof(float) * kChunk);
      }
    }
  }

  int clip(int pos) const {
    const int column = pos - chunk_begin;
    return column < 0 ? 0 : column > kChunk ? kChunk : column;
  }

  MixTask mix_task(int first_tile, int end_tile, const std::byte* next_keys) const {
    return {{},
            0,
            args.head_dim,
            tiles + first_tile,
            end_tile - first_tile,
            lo,
            hi,
            chunk_begin,
            scores,
            keep,
            blend,
            next_keys,
            span.out,
            producer,
            args.tcq};
  }

  // The pieces of the chunk that tiles [first, end), all of one page where it matters, read exactly or
  // encoded.
  void add_pieces(MixTask& task, int first_tile, int end_tile, bool exact) const {
    const int begin = clip(tiles[first_tile].lo), end = clip(tiles[end_tile - 1].hi);
    for (int column = begin; column < end;) {
      const int page_end = (column / 64 + 1) * 64, stop = page_end < end ? page_end : end;
      const int p = (chunk_begin + column) / 64;
      const std::byte* as_written = item.exact_values ? exact_page(tiles[first_tile].page, p) : nullptr;
      const std::byte* values = nullptr;
      if (exact)
        values = as_written ? as_written + exact_keys : nullptr;
      else if (const std::byte* keys = as_written ? nullptr : page(p))
        values = keys + key_bytes;
      if (values) task.pieces[task.n_pieces++] = {values, column % 64, stop - column, column};
      column = stop;
    }
  }

  bool any_exact_piece() const {
    for (int t = 0; item.exact_values && t < n_tiles; ++t)
      for (int p = chunk_begin / 64; p < (chunk_begin + kChunk) / 64; ++p)
        if (p <= tiles[t].page && exact_page(tiles[t].page, p)) return true;
    return false;
  }

  void mix_chunk(const std::byte* next_keys) {
    if (!any_exact_piece()) {
      MixTask task = mix_task(0, n_tiles, next_keys);
      add_pieces(task, 0, n_tiles, false);
      if (task.n_pieces) item.values->mix(task);
      return;
    }
    // A chunk is one sum before it meets the others, whatever its pages are: as it is when chunks are split.
    for (int t = 0, end; t < n_tiles; t = end) {
      for (end = t + 1; end < n_tiles && tiles[end].page == tiles[t].page;) ++end;
      const int row = tiles[t].row, end_row = tiles[end - 1].row + tiles[end - 1].n;
      float* sums = mixed + size_t(row) * args.head_dim;
      __builtin_memset(sums, 0, sizeof(float) * size_t(end_row - row) * args.head_dim);
      for (bool exact : {true, false}) {
        MixTask task = mix_task(t, end, next_keys);
        add_pieces(task, t, end, exact);
        task.out = mixed;
        task.keep = task.blend = ones;
        if (task.n_pieces) (exact ? item.exact_values : item.values)->mix(task);
        if (exact && item.values->stripes > 1) stripe_rows(sums, end_row - row);
      }
      for (int r = row; r < end_row; ++r)
        merge_out<Vec>(span.out + size_t(r) * args.head_dim, mixed + size_t(r) * args.head_dim, keep[r],
                       blend[r], args.head_dim);
    }
  }

  void stripe_rows(float* rows, int n) const {
    float one[kMaxHeadDim];
    for (int r = 0; r < n; ++r, rows += args.head_dim) {
      __builtin_memcpy(one, rows, sizeof(float) * size_t(args.head_dim));
      to_stripes(one, args.head_dim, item.values->stripes, rows);
    }
  }

  void merge_span() {
    merge_factors<Vec>(total.m, total.l, span.m, span.l, item.n_rows, keep, blend);
    for (int row = 0; row < item.n_rows; ++row)
      merge_out<Vec>(total.out + size_t(row) * args.head_dim, span.out + size_t(row) * args.head_dim,
                     keep[row], blend[row], args.head_dim);
    clear(span, item.n_rows, args.head_dim);
  }

  void write_part(float* part) const {
    __builtin_memcpy(part, span.m, sizeof(float) * item.n_rows);
    __builtin_memcpy(part + item.n_rows, span.l, sizeof(float) * item.n_rows);
  }

  void write_result() {
    for (int row = 0; row < item.n_rows; ++row) {
      float* out = args.out + int64_t(token(row)) * args.out_stride + int64_t(head(row)) * args.head_dim;
      finish_row<Vec>(total.out + size_t(row) * args.head_dim, total.l[row], args.head_dim,
                      item.values->stripes, out);
      if (item.unrotate) item.unrotate(formats::kValues, out, out, args.head_dim);
    }
  }

  void run_chunk(int chunk) {
    chunk_begin = chunk * kChunk;
    score_chunk();
    softmax_chunk();
    merge_factors<Vec>(span.m, span.l, m, l, item.n_rows, keep, blend);
    mix_chunk(chunk + 1 < item.chunk_end ? page((chunk + 1) * (kChunk / 64)) : nullptr);
  }

  // The rows' outputs grow where they are wanted.
  void run_parts() {
    for (int i = 0; i < item.n_parts; ++i) {
      float* part = item.partial + size_t(i) * item.part_stride;
      span.out = part + 2 * item.n_rows;
      clear(span, item.n_rows, args.head_dim);
      for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk)
        if (item.n_parts == 1 || chunk == item.part_chunk + i) run_chunk(chunk);
      write_part(part);
    }
  }

  void run_whole() {
    clear(span, item.n_rows, args.head_dim);
    clear(total, item.n_rows, args.head_dim);
    for (int chunk = item.chunk_begin; chunk < item.chunk_end; ++chunk) {
      run_chunk(chunk);
      if (chunk + 1 == item.chunk_end || (chunk + 1) % kSpanChunks == 0) merge_span();
    }
    write_result();
  }

  // The keys that are read first arrive while the queries are packed.
  void prefetch_first_keys() const {
    const int begin = item.chunk_begin * kChunk,
              first = (tiles[0].lo > begin ? tiles[0].lo : begin) / kGroupKeys;
    const std::byte* keys = page(first / 2);
    for (size_t at = 0; keys && at < key_bytes / 2; at += 64)
      __builtin_prefetch(keys + (first % 2) * (key_bytes / 2) + at, 0, 2);
  }

  void run() {
    for (float& one : ones) one = 1;
    make_tiles();
    prefetch_first_keys();
    pack_queries(*item.keys, query);
    item.partial ? run_parts() : run_whole();
  }
};

template <typename Vec>
void flash_item(const FlashItem& item, std::byte* scratch) {
  Flash<Vec>(item, scratch).run();
}

// The same merges as Flash::run, for one row whose parts were computed apart.
template <typename Vec>
void flash_merge(const MergeItem& item, std::byte* scratch) {
  Arena arena{scratch};
  float *keep = arena.take<float>(kBlockRows), *blend = arena.take<float>(kBlockRows);
  float *pm = arena.take<float>(kBlockRows), *pl = arena.take<float>(kBlockRows);
  const State span = take_state(arena, item.head_dim), total = take_state(arena, item.head_dim);
  clear(span, 1, item.head_dim);
  clear(total, 1, item.head_dim);
  for (int i = 0; i < kBlockRows; ++i) pm[i] = kMinusInf, pl[i] = 0;
  const auto merge = [&](const State& into, const float* m, const float* l, const float* out) {
    pm[0] = *m;
    pl[0] = *l;
    merge_factors<Vec>(into.m, into.l, pm, pl, 1, keep, blend);
    merge_out<Vec>(into.out, out, keep[0], blend[0], item.head_dim);
  };
  for (int u = 0; u < item.n_units; ++u) {
    const size_t at = size_t(u) * item.stride;
    if (item.unit != 1) {
      merge(total, item.m + at, item.l + at, item.out + at);
      continue;
    }
    merge(span, item.m + at, item.l + at, item.out + at);
    if (u + 1 == item.n_units || (item.first_chunk + u + 1) % kSpanChunks == 0) {
      merge(total, span.m, span.l, span.out);
      clear(span, 1, item.head_dim);
    }
  }
  finish_row<Vec>(total.out, total.l[0], item.head_dim, item.stripes, item.result);
  if (item.unrotate) item.unrotate(formats::kValues, item.result, item.result, item.head_dim);
}

}  // namespace
}  // namespace kvasir::cpu
