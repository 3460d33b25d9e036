#include "verify/checks/attention_case.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "formats/format.h"
#include "verify/bounds.h"
#include "verify/checks/context.h"
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
  const reference::Codec* codec = spec.codec(spec.k);
  const Arithmetic arithmetic = spec.keys();
  Query query;
  query.basis.assign(row.begin() + head * d, row.begin() + (head + 1) * d);
  query.norm = norm(query.basis.data(), d);
  codec->to_basis(reference::Side::kKeys, query.basis.data(), d);
  query.top = codec->query_top(query.basis.data(), d);
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

KeySide::Facts facts_of(const Rig& rig, const std::vector<double>& rows, bool with_top, ThreadPool& workers) {
  const int d = rig.spec().head_dim;
  const reference::Codec* codec = rig.spec().codec(rig.spec().k);
  const size_t n = rows.size() / size_t(d);
  KeySide::Facts facts{std::vector<double>(n), std::vector<double>(with_top ? n : 0)};
  for_each(workers, int64_t(n), [&](int64_t i) {
    const double* row = rows.data() + size_t(i) * size_t(d);
    facts.norm[size_t(i)] = norm(row, d);
    if (!with_top) return;
    std::vector<double> basis(row, row + d);
    codec->to_basis(reference::Side::kKeys, basis.data(), d);
    for (const double x : basis) facts.top[size_t(i)] = std::max(facts.top[size_t(i)], std::fabs(x));
  });
  return facts;
}

// Bounds of the scores of one head, by visible position.
std::vector<double> score_bounds(const RigSpec& spec, const KeySide& keys, const Scored& one,
                                 const Query& query) {
  const Arithmetic arithmetic = spec.keys();
  const reference::AttentionSpec attention = spec.attention();
  const size_t seq = size_t(one.place.seq), kv_head = size_t(one.head / (spec.n_head / spec.n_kv));
  const bool is_rotated = rotated(spec.k);
  ScoreTerms terms;
  terms.head_dim = spec.head_dim;
  terms.scale = spec.scale();
  terms.query_norm = query.norm;
  terms.query_top = query.top;
  std::vector<double> bounds;
  for (size_t j = 0; j < one.scores.score.size(); ++j) {
    const size_t at = size_t(one.scores.first) + j, row = at * size_t(spec.n_kv) + kv_head;
    const bool exact = keys.rows[seq].is_exact(attention, one.place.pos, int(at));
    const KeySide::Facts& facts = (exact ? keys.exact : keys.coded)[seq];
    terms.magnitude = one.scores.magnitude[j];
    terms.key_norm = facts.norm[row];
    terms.score = one.scores.score[j];
    // Coarse rounding is part of the expected value already, but for ties: each one step of a value of the
    // key.
    const Arithmetic own = exact                 ? exact_arithmetic(spec.kernel)
                           : arithmetic.coarse() ? Arithmetic{}
                                                 : arithmetic;
    double bound = score_bound(own, is_rotated, terms);
    if (!exact && query.coded.ties > 0)
      bound += query.coded.ties * query.top * arithmetic.query_step * facts.top[row] * terms.scale;
    bounds.push_back(bound + 4 * kUnit * double(spec.softcap));
  }
  return bounds;
}

// Results of all, merged in their order.
template <typename Compare>
Comparison compare_each(std::span<const Scored> scored, ThreadPool& workers, const Compare& one) {
  std::vector<Comparison> parts(scored.size());
  for_each(workers, int64_t(scored.size()), [&](int64_t i) { parts[size_t(i)] = one(scored[size_t(i)]); });
  Comparison whole;
  for (const Comparison& part : parts)
    if (part.n + part.not_finite > 0) add(whole, part);
  return whole;
}

Comparison compare_output(const Rig& rig, const Scored& one, const reference::Rows& values) {
  const RigSpec spec = rig.spec_of(one.place.seq, one.place.pos);
  Arithmetic arithmetic = spec.values();
  const bool is_rotated = rotated(spec.v);
  MixTerms terms;
  terms.n_keys = int(one.scores.score.size());
  terms.head_dim = spec.head_dim;
  for (const double bound : one.bound) terms.score_error = std::max(terms.score_error, bound);
  for (const double s : one.scores.score) terms.top_score = std::max(terms.top_score, std::fabs(s));
  for (const double w : one.scores.weight) terms.top_weight = std::max(terms.top_weight, w);
  reference::Scores scores = one.scores;
  std::vector<reference::Tie> ties;
  // Rounding is part of the expected value, but for ties: each one step of a value.
  if (arithmetic.coarse()) {
    reference::round_weights(spec.attention(), values, one.place.pos, one.head, 1 / arithmetic.weight_step,
                             weight_error(terms) + 4 * kUnit, scores, ties);
    arithmetic.weight_step = 0;
  }
  const reference::Mixed mixed =
      reference::mix_head(spec.attention(), scores, values, one.place.pos, one.head);
  terms.spread_norm = norm(mixed.spread.data(), spec.head_dim) / std::sqrt(double(spec.head_dim));
  std::vector<double> bounds;
  for (int i = 0; i < spec.head_dim; ++i) {
    terms.spread = mixed.spread[size_t(i)];
    terms.energy = mixed.energy[size_t(i)];
    double bound = mix_bound(arithmetic, is_rotated, terms);
    for (const reference::Tie& tie : ties)
      bound += tie.step * std::fabs(values.row(spec.attention(), one.place.pos, tie.pos,
                                               one.head / (spec.n_head / spec.n_kv))[i]);
    bounds.push_back(bound);
  }
  const auto out = rig.out(one.place.seq, one.place.pos);
  return compare(out.subspan(size_t(one.head * spec.head_dim), size_t(spec.head_dim)), mixed.out, bounds);
}

// Values of KV head g stand for positions [g d, (g + 1) d): weight j is output j - g d.
struct Readable {
  int base, begin, end;  // positions
  Readable(const RigSpec& spec, const Scored& one)
      : base(one.head / (spec.n_head / spec.n_kv) * spec.head_dim),
        begin(std::max(base, one.scores.first)),
        end(std::min(base + spec.head_dim, one.place.pos + 1)) {}
};

Comparison compare_score(const Rig& rig, const Scored& one) {
  const auto out = rig.out(one.place.seq, one.place.pos);
  const double most = *std::max_element(one.bound.begin(), one.bound.end());
  const double top_weight = *std::max_element(one.scores.weight.begin(), one.scores.weight.end());
  const Readable readable(rig.spec(), one);
  const Kernel kernel = rig.spec_of(one.place.seq, one.place.pos).kernel;
  std::vector<float> got;
  std::vector<double> want, limit;
  for (int j = readable.begin; j < readable.end; ++j) {
    const size_t at = size_t(j - one.scores.first);
    // ln weight = score - ln sum of exp: both move with the scores; weights themselves are rounded.
    got.push_back(float(std::log(double(out[size_t(one.head * rig.spec().head_dim + j - readable.base)]))));
    want.push_back(std::log(one.scores.weight[at]));
    limit.push_back(one.bound[at] + most + 32 * kUnit + kUnit * std::fabs(want.back()));
    // Weights are f16 beside the largest: relative to themselves, and near nothing to the least step there
    // is.
    if (kernel == Kernel::kHalves) limit.back() += 0x1p-11 + 0x1p-25 * (top_weight / one.scores.weight[at]);
    if (kernel == Kernel::kTerms) limit.back() += 0x1p-16;
  }
  return got.empty() ? Comparison{} : compare(got, want, limit);
}

// Squares of what the kernel adds to scores of encoded keys, relative to |q| |k| / sqrt(d), their mean taken
// off.
struct Noise {
  double sum = 0;
  int n = 0;
};

Noise measure_noise(const Rig& rig, const KeySide& keys, const Scored& one) {
  const RigSpec& spec = rig.spec();
  const auto out = rig.out(one.place.seq, one.place.pos);
  const size_t seq = size_t(one.place.seq), kv_head = size_t(one.head / (spec.n_head / spec.n_kv));
  const Readable readable(spec, one);
  std::vector<double> off;
  for (int j = readable.begin; j < readable.end; ++j) {
    if (keys.rows[seq].is_exact(spec.attention(), one.place.pos, j)) continue;
    const double key_norm = keys.coded[seq].norm[size_t(j) * size_t(spec.n_kv) + kv_head];
    const double unit = double(spec.scale()) * one.query_norm * key_norm / std::sqrt(double(spec.head_dim));
    const double got = std::log(double(out[size_t(one.head * spec.head_dim + j - readable.base)]));
    off.push_back((got - std::log(one.scores.weight[size_t(j - one.scores.first)])) / unit);
  }
  double mean = 0;
  for (const double x : off) mean += x / double(off.size());
  Noise noise;
  for (const double x : off) noise.sum += (x - mean) * (x - mean);
  noise.n = std::max(0, int(off.size()) - 1);
  return noise;
}

}  // namespace

KeySide read_keys(const Rig& rig, bool as_stored, ThreadPool& workers) {
  const Arithmetic arithmetic = rig.spec().keys();
  KeySide side;
  side.rows = rig.rows(reference::Side::kKeys, as_stored ? 0 : arithmetic.level_codes, workers);
  for (const reference::Rows& rows : side.rows) {
    side.coded.push_back(facts_of(rig, rows.coded, arithmetic.coarse(), workers));
    side.exact.push_back(facts_of(rig, rows.exact, false, workers));
  }
  return side;
}

std::vector<reference::Rows> read_values(const Rig& rig, ThreadPool& workers) {
  return rig.rows(reference::Side::kValues, rig.spec().values().level_codes, workers);
}

std::vector<Scored> score_rows(const Rig& rig, std::span<const Place> places, const KeySide& keys,
                               bool as_stored, ThreadPool& workers) {
  const RigSpec& spec = rig.spec();
  std::vector<Scored> all;
  for (const Place& place : places)
    for (int h = 0; h < spec.n_head; ++h) all.push_back({place, h, 0, {}, {}});
  for_each(workers, int64_t(all.size()), [&](int64_t i) {
    Scored& one = all[size_t(i)];
    const auto q = rig.query(one.place.seq, one.place.pos);
    const Query query = query_of(spec, q, one.head);
    one.query_norm = query.norm;
    one.scores = reference::score_head(spec.attention(), keys.rows[size_t(one.place.seq)], q, one.place.pos,
                                       one.head, as_stored ? std::span<const double>{} : query.coded.q);
    one.bound = score_bounds(rig.spec_of(one.place.seq, one.place.pos), keys, one, query);
  });
  return all;
}

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

Comparison compare_outputs(const Rig& rig, std::span<const Scored> scored,
                           std::span<const reference::Rows> values, ThreadPool& workers) {
  return compare_each(scored, workers, [&](const Scored& one) {
    return compare_output(rig, one, values[size_t(one.place.seq)]);
  });
}

Comparison compare_outputs(const Rig& rig, std::span<const Place> places, ThreadPool& workers) {
  return compare_outputs(rig, score_rows(rig, places, read_keys(rig, false, workers), false, workers),
                         read_values(rig, workers), workers);
}

Comparison compare_scores(const Rig& rig, std::span<const Place> places, ThreadPool& workers) {
  return compare_each(score_rows(rig, places, read_keys(rig, false, workers), false, workers), workers,
                      [&](const Scored& one) { return compare_score(rig, one); });
}

double score_noise(const Rig& rig, std::span<const Place> places, ThreadPool& workers) {
  const KeySide keys = read_keys(rig, true, workers);
  const std::vector<Scored> scored = score_rows(rig, places, keys, true, workers);
  std::vector<Noise> parts(scored.size());
  for_each(workers, int64_t(scored.size()),
           [&](int64_t i) { parts[size_t(i)] = measure_noise(rig, keys, scored[size_t(i)]); });
  Noise whole;
  for (const Noise& part : parts) {
    whole.sum += part.sum;
    whole.n += part.n;
  }
  return whole.n > 0 ? std::sqrt(whole.sum / whole.n) : NAN;
}

}  // namespace kvasir::verify
