#include "verify/checks/attention_case.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "formats/format.h"
#include "verify/bounds.h"
#include "verify/reference/codec.h"

namespace kvasir::verify {
namespace {

bool rotated(DType type) {
  const reference::Codec* codec = reference::find_codec(formats::require(type).name);
  return codec && codec->rotated();
}

double norm(const double* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return std::sqrt(sum);
}

// One head of one row, and what is found of it.
struct Item {
  Place place;
  int head;
  Comparison result;
  double noise = 0;  // squares, of n_noise scores
  int n_noise = 0;
};

struct Cached {
  reference::Rows keys, values;
};

using CompareHead = void (*)(const Rig& rig, const Cached& cached, Item& item);

// The query as kernels of coarse arithmetic use it, in the model's basis, and in how many places its rounding
// could as well have gone the other way.
struct CodedQuery {
  std::vector<double> q;
  int ties = 0;
};

struct Query {
  std::vector<double> basis;  // rotated where the keys are
  double norm = 0, top = 0;
  CodedQuery coded;  // empty unless the arithmetic is coarse
};

Query query_of(const RigSpec& spec, std::span<const float> row, int head) {
  const int d = spec.head_dim;
  const reference::Codec* codec = reference::find_codec(formats::require(spec.k).name);
  const Arithmetic arithmetic = arithmetic_of(spec.k, spec.flash);
  Query query;
  query.basis.assign(row.begin() + head * d, row.begin() + (head + 1) * d);
  query.norm = norm(query.basis.data(), d);
  codec->to_basis(reference::Side::kKeys, query.basis.data(), d);
  for (const double x : query.basis) query.top = std::max(query.top, std::fabs(x));
  if (!arithmetic.coarse() || query.top == 0) return query;
  const double step = query.top * arithmetic.query_step;
  // Single precision's error of a code: that of the rotation, in steps, and of the product that makes the
  // code.
  const double near_tie = std::max(2e-4, (std::log2(double(d)) + 2) * kUnit * query.norm / step);
  for (const double x : query.basis) {
    const double code = x / step;
    query.coded.ties += std::fabs(std::fabs(code - std::trunc(code)) - 0.5) < near_tie;
    query.coded.q.push_back(step * std::nearbyint(code));
  }
  codec->from_basis(reference::Side::kKeys, query.coded.q.data(), d);
  return query;
}

// The largest value of a key in the basis of its type.
double top_in_basis(const RigSpec& spec, const double* key) {
  std::vector<double> basis(key, key + spec.head_dim);
  reference::find_codec(formats::require(spec.k).name)
      ->to_basis(reference::Side::kKeys, basis.data(), spec.head_dim);
  double top = 0;
  for (const double value : basis) top = std::max(top, std::fabs(value));
  return top;
}

// Bounds of the scores of one head, by visible position.
std::vector<double> score_bounds(const RigSpec& spec, const reference::Rows& keys,
                                 const reference::Head& head, const Query& query, int pos, int query_head) {
  const Arithmetic arithmetic = arithmetic_of(spec.k, spec.flash);
  const reference::AttentionSpec attention = spec.attention();
  ScoreTerms terms;
  terms.head_dim = spec.head_dim;
  terms.scale = spec.scale();
  terms.query_norm = query.norm;
  terms.query_top = query.top;
  std::vector<double> bounds;
  for (size_t j = 0; j < head.score.size(); ++j) {
    const int at = head.first + int(j);
    const double* k = keys.row(attention, pos, at, query_head / (spec.n_head / spec.n_kv));
    const bool exact = keys.is_exact(attention, pos, at);
    terms.magnitude = head.magnitude[j];
    terms.key_norm = norm(k, spec.head_dim);
    terms.score = head.score[j];
    // Coarse rounding is part of the expected value already, but for ties: each one step of a value of the
    // key.
    double bound =
        score_bound(exact || arithmetic.coarse() ? Arithmetic{} : arithmetic, rotated(spec.k), terms);
    if (!exact && query.coded.ties > 0)
      bound += query.coded.ties * query.top * arithmetic.query_step * top_in_basis(spec, k) * terms.scale;
    bounds.push_back(bound + 4 * kUnit * double(spec.softcap));
  }
  return bounds;
}

// Every head of the rows named, by as many threads as there are. `as_stored`: rows without the kernels'
// rounding.
std::vector<Item> for_heads(const Rig& rig, std::span<const Place> places, ThreadPool& workers,
                            bool as_stored, CompareHead compare_head) {
  const RigSpec& spec = rig.spec();
  const int n_seq = int(spec.lengths.size());
  std::vector<Cached> cached(static_cast<size_t>(n_seq));
  std::vector<std::string> faults(2 * size_t(n_seq));
  TaskCounter sides;
  workers.run([&](int) {
    for (int64_t i = sides.take(); i < 2 * n_seq; i = sides.take()) try {
        const bool keys = i % 2 == 0;
        const int codes = as_stored ? 0 : arithmetic_of(keys ? spec.k : spec.v, spec.flash).level_codes;
        Cached& seq = cached[size_t(i / 2)];
        (keys ? seq.keys : seq.values) =
            rig.rows(int(i / 2), keys ? reference::Side::kKeys : reference::Side::kValues, codes);
      } catch (const std::exception& error) {
        faults[size_t(i)] = error.what();
      }
  });
  for (const std::string& fault : faults)
    if (!fault.empty()) fail(ErrorCode::kFailed, "{}", fault);
  std::vector<Item> items;
  for (const Place& place : places)
    for (int h = 0; h < spec.n_head; ++h) items.push_back({place, h, {}});
  TaskCounter next;
  workers.run([&](int) {
    for (int64_t i = next.take(); i < int64_t(items.size()); i = next.take())
      compare_head(rig, cached[size_t(items[size_t(i)].place.seq)], items[size_t(i)]);
  });
  return items;
}

Comparison merged(const std::vector<Item>& items) {
  Comparison whole;
  for (const Item& item : items)
    if (item.result.n + item.result.not_finite > 0) add(whole, item.result);
  return whole;
}

void compare_output(const Rig& rig, const Cached& cached, Item& item) {
  const RigSpec& spec = rig.spec();
  const auto [seq, pos] = item.place;
  const auto q = rig.query(seq, pos), out = rig.out(seq, pos);
  const Query query = query_of(spec, q, item.head);
  const reference::Head head =
      reference::attend(spec.attention(), cached.keys, cached.values, q, pos, item.head, query.coded.q);
  MixTerms terms;
  terms.n_keys = int(head.score.size());
  terms.head_dim = spec.head_dim;
  for (const double bound : score_bounds(spec, cached.keys, head, query, pos, item.head))
    terms.score_error = std::max(terms.score_error, bound);
  for (const double s : head.score) terms.top_score = std::max(terms.top_score, std::fabs(s));
  for (const double w : head.weight) terms.top_weight = std::max(terms.top_weight, w);
  terms.spread_norm = norm(head.spread.data(), spec.head_dim) / std::sqrt(double(spec.head_dim));
  std::vector<double> bounds;
  for (int i = 0; i < spec.head_dim; ++i) {
    terms.spread = head.spread[size_t(i)];
    terms.energy = head.energy[size_t(i)];
    bounds.push_back(mix_bound(arithmetic_of(spec.v, spec.flash), rotated(spec.v), terms));
  }
  item.result =
      compare(out.subspan(size_t(item.head * spec.head_dim), size_t(spec.head_dim)), head.out, bounds);
}

// Values of KV head g stand for positions [g d, (g + 1) d): weight j is output j - g d.
struct Readable {
  int base, begin, end;  // positions
  Readable(const RigSpec& spec, const reference::Head& head, int query_head, int pos)
      : base(query_head / (spec.n_head / spec.n_kv) * spec.head_dim),
        begin(std::max(base, head.first)),
        end(std::min(base + spec.head_dim, pos + 1)) {}
};

void compare_score(const Rig& rig, const Cached& cached, Item& item) {
  const RigSpec& spec = rig.spec();
  const auto [seq, pos] = item.place;
  const auto q = rig.query(seq, pos), out = rig.out(seq, pos);
  const Query query = query_of(spec, q, item.head);
  const reference::Head head =
      reference::attend(spec.attention(), cached.keys, cached.values, q, pos, item.head, query.coded.q);
  const std::vector<double> bound = score_bounds(spec, cached.keys, head, query, pos, item.head);
  const double most = *std::max_element(bound.begin(), bound.end());
  const Readable readable(spec, head, item.head, pos);
  std::vector<float> got;
  std::vector<double> want, limit;
  for (int j = readable.begin; j < readable.end; ++j) {
    // ln weight = score - ln sum of exp: both move with the scores; weights themselves are rounded.
    got.push_back(float(std::log(double(out[size_t(item.head * spec.head_dim + j - readable.base)]))));
    want.push_back(std::log(head.weight[size_t(j - head.first)]));
    limit.push_back(bound[size_t(j - head.first)] + most + 32 * kUnit + kUnit * std::fabs(want.back()));
  }
  if (!got.empty()) item.result = compare(got, want, limit);
}

// Squares of what the kernel adds to scores of encoded keys, relative to |q| |k| / sqrt(d), their mean taken
// off.
void measure_noise(const Rig& rig, const Cached& cached, Item& item) {
  const RigSpec& spec = rig.spec();
  const auto [seq, pos] = item.place;
  const auto q = rig.query(seq, pos), out = rig.out(seq, pos);
  const reference::AttentionSpec attention = spec.attention();
  const reference::Head head = reference::attend(attention, cached.keys, cached.values, q, pos, item.head);
  const Query query = query_of(spec, q, item.head);
  const Readable readable(spec, head, item.head, pos);
  std::vector<double> off;
  for (int j = readable.begin; j < readable.end; ++j) {
    if (cached.keys.is_exact(attention, pos, j)) continue;
    const double* k = cached.keys.row(attention, pos, j, item.head / (spec.n_head / spec.n_kv));
    const double unit =
        double(spec.scale()) * query.norm * norm(k, spec.head_dim) / std::sqrt(double(spec.head_dim));
    const double got = std::log(double(out[size_t(item.head * spec.head_dim + j - readable.base)]));
    off.push_back((got - std::log(head.weight[size_t(j - head.first)])) / unit);
  }
  double mean = 0;
  for (const double x : off) mean += x / double(off.size());
  for (const double x : off) item.noise += (x - mean) * (x - mean);
  item.n_noise = std::max(0, int(off.size()) - 1);
}

}  // namespace

std::vector<Place> interesting_rows(const RigSpec& spec, int most) {
  std::vector<Place> places;
  for (int seq = 0; seq < int(spec.lengths.size()); ++seq) {
    const int n = spec.lengths[size_t(seq)];
    std::set<int> seen;
    for (const int pos :
         {n - 1, 0, n - 2, 64, 63, n / 2, 127, 128, n / 3, spec.window, spec.window - 1, n - 9})
      if (pos >= 0 && pos < n && int(seen.size()) < most && seen.insert(pos).second)
        places.push_back({seq, pos});
  }
  return places;
}

Comparison compare_outputs(const Rig& rig, std::span<const Place> places, ThreadPool& workers) {
  return merged(for_heads(rig, places, workers, false, compare_output));
}

Comparison compare_scores(const Rig& rig, std::span<const Place> places, ThreadPool& workers) {
  return merged(for_heads(rig, places, workers, false, compare_score));
}

double score_noise(const Rig& rig, std::span<const Place> places, ThreadPool& workers) {
  double sum = 0;
  int n = 0;
  for (const Item& item : for_heads(rig, places, workers, true, measure_noise)) {
    sum += item.noise;
    n += item.n_noise;
  }
  return n > 0 ? std::sqrt(sum / n) : NAN;
}

}  // namespace kvasir::verify
