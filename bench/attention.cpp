// Speed of attention beside what the machine can do in the same minute:
//   decode   one token at depth, caches of at least 512 MiB rotated through; GB/s of K and V read, share of
//   the read
//            bandwidth, and values a second over those of f16
//   prefill  512 tokens at depth 0 and 3584; GFLOP/s (4 * head_dim a visible pair and head), share of the f32
//   FMA
//            peak, and the ratio to f16
//   append   512 tokens written, and encoded where the type encodes whole pages; million values a second (K
//   and V)
// Slices alternate with slices of f16 and of the read probe or the peak loop; best and (median) of each.
//   attention [-t threads] [-s seconds a figure] [-d depth] [--cache MiB] [--decode] [--isa NAME] [--plain]
//   [--geometry TEXT] [K/V ...]
// --cache: what decode rotates through; a small one shows the kernels without the memory. --decode: only
// that. --geometry: only those whose name has the text in it.
#include "backends/cpu/kernels/attention/attention.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/rate_meter.h"
#include "backends/cpu/roofline.h"
#include "backends/cpu/roofline_kernels.h"
#include "base/error.h"
#include "formats/format.h"
#include "graph/kv_layout.h"

namespace {

using namespace kvasir;
using namespace kvasir::cpu;

struct Geometry {
  const char* name;
  int n_head, n_kv, head_dim;
};
constexpr Geometry kGeometries[] = {
    {"gemma4-e2b global", 8, 1, 512}, {"gemma4-e2b sliding", 8, 1, 256}, {"gemma3-270m", 4, 1, 256}};
constexpr int kPrefillRows = 512;

struct Options {
  int threads = cpu_count();
  double seconds = 0.5;
  int depth = 16384;
  size_t cache_bytes = size_t(512) << 20;
  bool decode_only = false;
  Isa isa = best_isa();
  bool flash = true;
  std::string geometry;
  std::vector<std::string> pairs;
};

std::vector<float> random_floats(size_t n) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// As many caches of n_keys tokens as fill a number of bytes; every page holds the same 64 random tokens, and
// so does the one exact page.
struct Caches {
  Geometry g;
  DType k, v;
  Isa isa;
  int n_keys, n_caches;
  size_t page_bytes;
  AlignedBuffer pages, exact;
  std::vector<std::vector<int32_t>> tables;
  std::vector<int32_t> exact_table;
  size_t exact_bytes;

  Caches(const Geometry& geometry, DType kt, DType vt, int keys, size_t bytes, Isa level, ThreadPool& pool)
      : g(geometry), k(kt), v(vt), isa(level), n_keys(keys) {
    page_bytes = graph::kv_page_bytes({0, g.head_dim, g.n_kv, 0, k, v});
    const int n_pages = (n_keys + 63) / 64;
    n_caches = int((bytes + page_bytes * size_t(n_pages) - 1) / (page_bytes * size_t(n_pages)));
    pages = AlignedBuffer(page_bytes * size_t(n_pages) * size_t(n_caches));
    for (int c = 0; c < n_caches; ++c) {
      tables.emplace_back();
      for (int p = 0; p < n_pages; ++p) tables.back().push_back(c * n_pages + p);
    }
    exact_bytes = graph::kv_exact_page_bytes({0, g.head_dim, g.n_kv, 0, k, v});
    exact = AlignedBuffer(exact_bytes + 64);
    exact_table.assign(size_t(n_pages), exact_bytes ? 0 : -1);
    append(0, 64);
    pool.run([&](int thread) {
      for (int64_t p = 1 + thread; p < int64_t(n_pages) * n_caches; p += pool.size())
        std::memcpy(pages.data() + size_t(p) * page_bytes, pages.data(), page_bytes);
    });
  }

  void append(int begin, int end) {
    const int64_t width = int64_t(g.n_kv) * g.head_dim;
    static const std::vector<float> x = random_floats(size_t(kPrefillRows) * 4 * 512);
    std::vector<graph::Row> rows;
    for (int i = 0; i < end; ++i) rows.push_back({0, i, 0, 0});
    graph::SequenceView view;
    view.page_table[0] = tables[0];
    view.exact_table[0] = exact_table;
    const AppendArgs args{k,          v, x.data(),     x.data(),   width,  width,      rows.data(),
                          {&view, 1}, 0, pages.data(), page_bytes, g.n_kv, g.head_dim, exact_pages()};
    append_rows(isa, args, begin, end);
    for (int page = begin / 64; page < end / 64; ++page)
      for (int head = 0; head < g.n_kv; ++head)
        for (int side = 0; side < 2; ++side) commit_page(isa, args, 0, page, head, side);
  }

  ExactPages exact_pages() const {
    std::byte* data = const_cast<std::byte*>(exact.data());
    return {data, data, 1, exact_bytes};
  }
};

// Calls on the team with reused scratch.
struct Caller {
  ThreadPool& pool;
  const AttentionVariant* variant;
  std::vector<float> q, out;
  AlignedBuffer shared;
  std::vector<AlignedBuffer> scratch;

  Caller(ThreadPool& team, const AttentionVariant* v, const Geometry& g, int max_rows, int n_ctx)
      : pool(team), variant(v) {
    q = random_floats(size_t(max_rows) * g.n_head * g.head_dim);
    out.resize(q.size());
    AttentionArgs shape;
    shape.variant = v, shape.n_head = g.n_head, shape.n_kv = g.n_kv, shape.head_dim = g.head_dim;
    const AttentionPlan bound = bound_attention(shape, max_rows, n_ctx);
    shared = AlignedBuffer(bound.shared_bytes + 64);
    for (int t = 0; t < pool.size(); ++t) scratch.emplace_back(bound.thread_bytes);
  }

  AttentionArgs args_of(const Caches& caches, const std::vector<graph::Row>& rows) const {
    const int64_t width = int64_t(caches.g.n_head) * caches.g.head_dim;
    AttentionArgs args;
    args.variant = variant, args.q = q.data(), args.q_stride = args.out_stride = width;
    args.out = const_cast<float*>(out.data());
    args.rows = rows.data(), args.n_rows = int(rows.size());
    args.pages = caches.pages.data(), args.page_bytes = caches.page_bytes;
    args.q_rotated = true;  // as rope leaves it: once a call, outside attention
    args.n_head = caches.g.n_head, args.n_kv = caches.g.n_kv, args.head_dim = caches.g.head_dim;
    args.scale = 1.0f / float(caches.g.head_dim);
    args.page_table = caches.tables[0];
    args.exact_table = caches.exact_table;
    args.exact = caches.exact_pages();
    return args;
  }

  // `calls` decode calls on caches from `first`; returns calls a second.
  double decode(const Caches& caches, int first, int calls) {
    const std::vector<graph::Row> rows{{0, caches.n_keys - 1, 0, 0}};
    std::vector<std::array<TaskCounter, 2>> counters{size_t(calls)};
    return slice_rate(pool, [&](int thread) {
      AttentionArgs args = args_of(caches, rows);
      for (int c = 0; c < calls; ++c) {
        args.page_table = caches.tables[size_t(first + c) % size_t(caches.n_caches)];
        const AttentionPlan plan = plan_attention(args);
        for (int phase = 0; phase < 2; ++phase) {
          for (int64_t i; (i = counters[size_t(c)][size_t(phase)].take()) < plan.n_items[phase];)
            run_attention(args, plan, phase, i, shared.data(), scratch[size_t(thread)].data());
          pool.barrier();
        }
      }
      return thread == 0 ? double(calls) : 0.0;  // calls, not calls of every thread
    });
  }

  // Items [begin, end) of a prefill call; returns how often a second.
  double prefill_items(const AttentionArgs& args, const AttentionPlan& plan, int64_t begin, int64_t end) {
    TaskCounter counter;
    return slice_rate(pool, [&](int thread) {
      for (int64_t i; (i = begin + counter.take()) < end;)
        run_attention(args, plan, 0, i, shared.data(), scratch[size_t(thread)].data());
      return thread == 0 ? 1.0 : 0.0;
    });
  }
};

struct Figure {
  Rates rate, f16, roof;
};

template <class Work, class F16, class Roof>
Figure alternate(double seconds, const Work& work, const F16& f16, const Roof& roof) {
  std::vector<double> rates, plain, roofs;
  const auto begin = std::chrono::steady_clock::now();
  while (rates.size() < 5 || seconds_since(begin) < seconds)
    rates.push_back(work()), plain.push_back(f16()), roofs.push_back(roof());
  return {summarise(rates), summarise(plain), summarise(roofs)};
}

// `unit`: what one of the printed unit is in a rate; `base`: the same of f16.
void print(const Figure& f, double unit, double base) {
  const double best = f.rate.best * unit, median = f.rate.median * unit;
  std::printf(" %.1f (%.1f) | %.0f %% (%.0f %%) | %.2f (%.2f) |", best / 1e9, median / 1e9,
              100 * best / f.roof.best, 100 * median / f.roof.median, best / (f.f16.best * base),
              median / (f.f16.median * base));
}

// One pair at one geometry, ready to be measured.
struct Subject {
  Caches caches;
  Caller caller;
  Subject(const Options& options, const Geometry& g, DType k, DType v, ThreadPool& pool)
      : caches(g, k, v, options.depth, options.cache_bytes, options.isa, pool),
        caller(pool, variant_of(options, g, k, v), g, kPrefillRows, options.depth) {}

  static const AttentionVariant* variant_of(const Options& options, const Geometry& g, DType k, DType v) {
    std::string why;
    const AttentionVariant* variant = find_attention(k, v, g.head_dim, options.isa, options.flash, &why);
    if (!variant) fail(ErrorCode::kRefused, "{}", why);
    return variant;
  }

  int at = 0;
  // Slices of 32 MiB a thread; returns calls a second.
  double decode(const Options& options) {
    const double bytes = double(caches.page_bytes) / 64 * options.depth;
    const int calls = std::max(1, int(double(32 << 20) * options.threads / bytes));
    return caller.decode(caches, (at += calls) - calls, calls);
  }
};

void measure_decode(const Options& options, Subject& subject, Subject& f16, ReadProbe& probe) {
  const Figure f = alternate(
      options.seconds, [&] { return subject.decode(options); }, [&] { return f16.decode(options); },
      [&] { return probe.slice(); });
  const double bytes = double(subject.caches.page_bytes) / 64 * options.depth;
  print(f, bytes, bytes);
}

// A prefill in slices of a few items each, so that a slice fits between other programs' turns: the sum of the
// best (median) times of the slices stands for the call.
struct Prefill {
  const AttentionArgs args;
  const AttentionPlan plan;
  int64_t step, groups;
  std::vector<std::vector<double>> rates;

  Prefill(const Options& options, const Subject& subject, const std::vector<graph::Row>& rows)
      : args(subject.caller.args_of(subject.caches, rows)),
        plan(plan_attention(args)),
        step(2 * options.threads),
        groups((plan.n_items[0] + step - 1) / step),
        rates(size_t(groups)) {}
  void slice(Caller& caller, int64_t g) {
    const int64_t end = std::min(plan.n_items[0], (g + 1) * step);
    rates[size_t(g)].push_back(caller.prefill_items(args, plan, g * step, end));
  }
  Rates calls() const {
    double best = 0, median = 0;
    for (const auto& group : rates) {
      const Rates r = summarise(group);
      best += 1 / r.best, median += 1 / r.median;
    }
    return {1 / median, 1 / best};
  }
};

void measure_prefill(const Options& options, Subject& subject, Subject& f16, int depth) {
  std::vector<graph::Row> rows;
  for (int i = 0; i < kPrefillRows; ++i) rows.push_back({0, depth + i, 0, 0});
  Prefill one(options, subject, rows), base(options, f16, rows);
  const auto peak = roofline_kernels(options.isa).f32;
  std::vector<double> roofs;
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < 5 || seconds_since(begin) < options.seconds; ++round)
    for (int64_t g = 0; g < one.groups; ++g) {
      one.slice(subject.caller, g);
      base.slice(f16.caller, g);
      roofs.push_back(slice_rate(subject.caller.pool, [&](int) { return peak(10000); }));
    }
  const double pairs = double(kPrefillRows) * depth + double(kPrefillRows) * (kPrefillRows + 1) / 2;
  const double flops = 4.0 * subject.caches.g.head_dim * pairs * subject.caches.g.n_head;
  print({one.calls(), base.calls(), summarise(roofs)}, flops, flops);
}

void measure(const Options& options, const Geometry& g, DType k, DType v, Subject& f16, ThreadPool& pool,
             ReadProbe& probe) {
  Subject subject(options, g, k, v, pool);
  std::printf("| %s | %s |", g.name, attention_name(*subject.caller.variant));
  measure_decode(options, subject, f16, probe);
  if (options.decode_only) {
    std::printf("\n");
    return;
  }
  for (int depth : {0, 3584})
    if (depth + kPrefillRows <= options.depth) measure_prefill(options, subject, f16, depth);
  Caches one(g, k, v, kPrefillRows, 1, options.isa, pool);
  std::vector<double> rates;
  for (int i = 0; i < 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    one.append(i % 8 * 64, i % 8 * 64 + 64);
    rates.push_back(2.0 * 64 * g.n_kv * g.head_dim / seconds_since(start));
  }
  std::printf(" %.0f |\n", summarise(rates).best / 1e6);
  std::fflush(stdout);
}

DType type_of(const std::string& name, formats::Role role) { return formats::require(name, role).type; }

void run(const Options& options) {
  ThreadPool pool(options.threads);
  ReadProbe probe(pool, options.isa);
  std::printf("threads %d, depth %d, %s; best (median) of slices\n\n", options.threads, options.depth,
              cpu_name().c_str());
  std::printf(
      "| geometry | variant | decode GB/s | of read | x f16 | prefill 512 GFLOP/s | of FMA peak | x f16 "
      "| at 3584 GFLOP/s | of FMA peak | x f16 | append Mvalues/s, 1 thread |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Geometry& g : kGeometries) {
    if (std::string(g.name).find(options.geometry) == std::string::npos) continue;
    Subject f16(options, g, DType::f16, DType::f16, pool);
    for (const std::string& pair : options.pairs) {
      const size_t slash = pair.find('/');
      const std::string k = pair.substr(0, slash),
                        v = slash == std::string::npos ? k : pair.substr(slash + 1);
      measure(options, g, type_of(k, formats::kKeys), type_of(v, formats::kValues), f16, pool, probe);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (arg == "-t")
      options.threads = std::atoi(value());
    else if (arg == "-s")
      options.seconds = std::atof(value());
    else if (arg == "-d")
      options.depth = std::atoi(value());
    else if (arg == "--isa")
      options.isa = find_isa(value()).value_or(best_isa());
    else if (arg == "--cache")
      options.cache_bytes = size_t(std::atoi(value())) << 20;
    else if (arg == "--decode")
      options.decode_only = true;
    else if (arg == "--geometry")
      options.geometry = value();
    else if (arg == "--plain")
      options.flash = false;
    else
      options.pairs.push_back(arg);
  }
  if (options.pairs.empty()) options.pairs = {"f16", "q8_0", "q4_0", "tbq4_h", "tbq3_h", "tbq2_h"};
  try {
    run(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "attention: %s\n", error.what());
    return int(error.code());
  }
  return 0;
}
