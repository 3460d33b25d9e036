// scores: q . k of every key type, read through values that are unit vectors: the output of attention is then
// the weight of each key, and its logarithm the score up to one constant a row.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/q4_polar.h"
#include "graph/kv_layout.h"
#include "verify/bounds.h"
#include "verify/checks/attention_case.h"
#include "verify/checks/context.h"
#include "verify/reference/codec.h"

namespace kvasir::verify {
namespace {

constexpr int kLength = 150, kPrompt = 128;  // two whole pages, one open

// The whole pages as prompts, then row by row: kernels of many rows and of one are not the same everywhere.
void run_prompt_and_rows(Rig& rig) {
  for (int at = 0; at < kLength;) {
    const int n = at < kPrompt ? std::min(rig.spec().max_rows, kPrompt - at) : 1;
    const Rig::Take take{0, n};
    rig.step({&take, 1});
    at += n;
  }
}

RigSpec score_spec(const Context& context, DType k, int head_dim, bool flash) {
  const backends::Caps& caps = context.caps();
  RigSpec spec;
  spec.tcq = context.tcq();
  spec.k = k;
  // Ones and zeros are exact in every float type; the kernel in question has to be the one that runs. On CUDA
  // it takes f32 and bf16 beside themselves only, and f16 beside the others.
  const bool tiles = flash && outranges_flash(caps, DType::f32);
  spec.v = !tiles ? DType::f32 : outranges_flash(caps, k) ? k : DType::f16;
  spec.head_dim = head_dim;
  spec.flash = flash;
  spec.lengths = {kLength};
  spec.n_kv = (150 + head_dim - 1) / head_dim;
  spec.n_head = 2 * spec.n_kv;
  spec.gain = 2;
  spec.one_hot = true;
  spec.max_rows = 96;
  spec.seed = 0x5c0 + uint64_t(k) * 7 + uint64_t(head_dim);
  return spec;
}

// Scores of the rows of whole pages with the last query, by the product's codec and in double precision from
// the bytes. Both may differ by single precision's error of a row and of the transform: (log2 128 + 5) u |q|
// |k|.
Comparison compare_polar(const Rig& rig, bool residual, bool transformed) {
  const RigSpec& spec = rig.spec();
  const formats::Format& format = formats::require(spec.k);
  const reference::Codec* codec = reference::find_codec(format.name);
  const int d = spec.head_dim, last = spec.lengths[0] - 1;
  std::vector<float> got;
  std::vector<double> want, bound;
  for (int page = 0; (page + 1) * graph::kPageTokens <= last; ++page)
    for (int head = 0; head < spec.n_kv; ++head) {
      const std::vector<std::byte> bytes = rig.page(0, page, head, backends::PagePart::kKeys);
      const auto all = rig.query(0, last);
      const size_t first = size_t(head * (spec.n_head / spec.n_kv) * d);
      std::vector<float> q(all.begin() + long(first), all.begin() + long(first + size_t(d)));
      const std::vector<double> exact_q(q.begin(), q.end());
      if (transformed) to_type_basis(format, formats::kKeys, q.data(), d);
      for (int t = 0; t < graph::kPageTokens; ++t) {
        const std::byte* wire = bytes.data() + size_t(t) * format.row_bytes(d);
        std::vector<float> row(static_cast<size_t>(d));
        for (int b = 0; b < d / 128; ++b) {
          formats::BlockQ4Polar block;
          std::memcpy(&block, wire + size_t(b) * sizeof block, sizeof block);
          formats::decode_polar(block, residual, row.data() + b * 128);
        }
        if (!transformed) from_type_basis(format, formats::kKeys, row.data(), d);
        std::vector<double> key(static_cast<size_t>(d));
        residual ? codec->decode_residual(wire, d, key.data()) : codec->decode(wire, d, key.data());
        codec->from_basis(reference::Side::kKeys, key.data(), d);
        double mine = 0, theirs = 0, q_squares = 0, k_squares = 0;
        for (size_t i = 0; i < key.size(); ++i) {
          mine += double(q[i]) * double(row[i]);
          theirs += exact_q[i] * key[i];
          q_squares += exact_q[i] * exact_q[i];
          k_squares += key[i] * key[i];
        }
        got.push_back(float(mine));
        want.push_back(theirs);
        bound.push_back(12 * kUnit * std::sqrt(q_squares * k_squares) + kUnit * std::fabs(theirs));
      }
    }
  return compare(got, want, bound);
}

// Options of q4_polar that no kernel takes, by the product's codec on rows that the device stored: with the
// residual bit read, and with the transform on the query's side or on the key's.
void check_polar_options(Context& context, int head_dim) {
  const DType type = DType::q4_polar;
  struct Option {
    const char* name;
    bool residual, transformed;
  };
  for (const Option& option : {Option{"polar_residual", true, false}, Option{"polar_preht", false, true},
                               Option{"polar_preht_residual", true, true}}) {
    const Label label{"scores", option.name, head_dim, "q4_polar", "f32"};
    if (!formats::require(type).takes(head_dim)) {
      not_applicable(context, label, fmt::format("head size {} is refused (dispatch checks that)", head_dim));
      continue;
    }
    check(context, label, [&](decide::CheckResult& result) {
      Rig rig(context.backend(), score_spec(context, type, head_dim, true));
      result.variant = "q4_polar codec, rows of " + rig.variant();
      run_prompt_and_rows(rig);
      conclude(result, compare_polar(rig, option.residual, option.transformed));
    });
  }
}

}  // namespace

void check_scores(Context& context) {
  const auto keys = context.kv_types(formats::kKeys);
  if (std::ranges::find(keys, DType::q4_polar) != keys.end())
    for (const int head_dim : context.head_dims()) check_polar_options(context, head_dim);
  for (const DType k : context.kv_types(formats::kKeys))
    for (const int head_dim : context.head_dims())
      for (const bool flash : {true, false}) {
        const Label label{"scores", std::string(check_name(k)) + (flash ? "" : " without flash attention"),
                          head_dim, std::string(type_name(k)), "f32"};
        if (!formats::require(k).takes(head_dim)) {
          not_applicable(context, label,
                         fmt::format("head size {} is refused (dispatch checks that)", head_dim));
          continue;
        }
        double noise = NAN;
        const bool coarse =
            flash && context.caps().name == "cpu" && arithmetic_of(k, Kernel::kCodes).coarse();
        check(context, label, [&](decide::CheckResult& result) {
          Rig rig(context.backend(), score_spec(context, k, head_dim, flash));
          result.variant = rig.variant();
          run_prompt_and_rows(rig);
          conclude(result, compare_scores(rig, interesting_rows(rig.spec(), 8), context.workers()));
          if (coarse) noise = score_noise(rig, interesting_rows(rig.spec(), 8), context.workers());
        });
        if (!coarse) continue;
        // What rounding query and levels adds may be a fifth of the code's own error: 4 % more energy.
        check(context, {"scores", label.name + ", noise of the kernel", head_dim, label.k, label.v},
              [&](decide::CheckResult& result) {
                result.variant = context.results.back().variant;
                const double own = std::sqrt(context.tcq().type_error(k, head_dim));
                conclude(result, noise, own / 5,
                         fmt::format("relative noise {:.4g}, the code's own error is {:.4g}", noise, own));
              });
      }
}

}  // namespace kvasir::verify
