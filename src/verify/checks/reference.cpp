// reference: the scalar codecs, the truth about bytes, against double precision that shares no code or
// constant with them; and the identities that attention rests on.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "verify/checks/context.h"
#include "verify/reference/attention.h"
#include "verify/reference/codec.h"
#include "verify/reference/random.h"

namespace kvasir::verify {
namespace {

// Rows as the codec gets them: in its basis, rounded to f16 where pages are encoded from f16.
struct Sample {
  std::vector<float> model, basis;
  int rows, d;
};

// Rows are worked on in this many parts, whose sums are added in order.
constexpr int kParts = 16;

// Rows of part i.
struct Range {
  int begin, end;
  Range(int rows, int64_t i) : begin(int(rows * i / kParts)), end(int(rows * (i + 1) / kParts)) {}
};

Sample make_sample(Context& context, const reference::Codec& codec, int d, int rows, uint64_t seed) {
  Sample s{reference::Gaussian(seed).vector(size_t(d) * size_t(rows)), {}, rows, d};
  s.basis = s.model;
  const formats::Format& format = formats::require(codec.name(), formats::kKeys);
  for_each(context.workers(), kParts, [&](int64_t part) {
    for (int r = Range(rows, part).begin; r < Range(rows, part).end; ++r) {
      float* x = s.basis.data() + size_t(r) * size_t(d);
      to_type_basis(format, formats::kKeys, x, d);
      if (codec.open_page())
        for (int i = 0; i < d; ++i) x[i] = f16_to_f32(f32_to_f16(x[i]));
    }
  });
  return s;
}

void check_decode(Context& context, const formats::Format& format, const reference::Codec& codec, int d) {
  const std::string name(format.name);
  check(context, {"reference", name + " decode", d, name, name}, [&](decide::CheckResult& result) {
    result.variant = "scalar";
    const Sample s = make_sample(context, codec, d, 64, 0xdec0de);
    if (format.row_bytes(d) != codec.row_bytes(d))
      fail(ErrorCode::kFailed, "a row has {} bytes, by its description {}", format.row_bytes(d),
           codec.row_bytes(d));
    std::vector<std::byte> row(format.row_bytes(d));
    std::vector<float> got(static_cast<size_t>(d));
    std::vector<double> want(static_cast<size_t>(d)), bound(static_cast<size_t>(d));
    Comparison whole;
    for (int r = 0; r < s.rows; ++r) {
      format.encode_row(context.tcq().table.get(), s.basis.data() + size_t(r) * size_t(d), row.data(), d);
      format.decode_row(context.tcq().table.get(), row.data(), got.data(), d);
      codec.decode(row.data(), d, want.data());
      double square = 0;
      for (const double x : want) square += x * x;
      const double sums = codec.decode_error() * std::sqrt(square / d);
      // A level rounded to seven digits or to single precision, times a scale.
      for (int i = 0; i < d; ++i) bound[size_t(i)] = 0x1p-21 * std::fabs(want[size_t(i)]) + sums;
      add(whole, compare(got, want, bound));
    }
    conclude(result, whole);
  });
}

// Squares over rows.
struct Errors {
  reference::RowFaults faults;
  double error = 0, least = 0, total = 0;  // ours, the reference's own encoding, the values

  void add(const Errors& part) {
    faults.codes += part.faults.codes;
    faults.scales += part.faults.scales;
    faults.worst = std::max(faults.worst, part.faults.worst);
    error += part.error;
    least += part.least;
    total += part.total;
  }
};

template <typename Row>
Errors sum_rows(Context& context, const Sample& s, const Row& one_row) {
  std::vector<Errors> parts(kParts);
  for_each(context.workers(), kParts, [&](int64_t part) {
    const Range range(s.rows, part);
    for (int r = range.begin; r < range.end; ++r)
      one_row(s.basis.data() + size_t(r) * size_t(s.d), parts[size_t(part)]);
  });
  Errors whole;
  for (const Errors& part : parts) whole.add(part);
  return whole;
}

double square(double x) { return x * x; }

// NMSE of 2^20 unit Gaussians: rare large values make a fifth of it, so that fewer scatter by a percent.
double measured_error(Context& context, const formats::Format& format, const reference::Codec& codec, int d) {
  const Sample s = make_sample(context, codec, d, (codec.searches() ? 1 << 17 : 1 << 20) / d, 0x2e4);
  const Errors sums = sum_rows(context, s, [&](const float* x, Errors& part) {
    std::vector<std::byte> row(format.row_bytes(d));
    std::vector<float> y(static_cast<size_t>(d));
    format.encode_row(context.tcq().table.get(), x, row.data(), d);
    format.decode_row(context.tcq().table.get(), row.data(), y.data(), d);
    for (int i = 0; i < d; ++i) {
      part.error += square(double(y[size_t(i)]) - double(x[i]));
      part.total += square(double(x[i]));
    }
  });
  return sums.error / sums.total;
}

// One row against the reference's own encoding of it.
void check_row(const Context& context, const formats::Format& format, const reference::Codec& codec,
               const float* x, int d, Errors& part) {
  const std::vector<double> exact(x, x + d);
  std::vector<std::byte> row(format.row_bytes(d)), best(row.size());
  std::vector<double> ours(exact), theirs(exact);
  format.encode_row(context.tcq().table.get(), x, row.data(), d);
  codec.encode(exact.data(), d, best.data());
  codec.decode(row.data(), d, ours.data());
  codec.decode(best.data(), d, theirs.data());
  Errors one;
  one.faults = codec.check(exact.data(), d, row.data(), best.data());
  for (size_t i = 0; i < exact.size(); ++i) {
    one.error += square(ours[i] - exact[i]);
    one.least += square(theirs[i] - exact[i]);
    one.total += square(exact[i]);
  }
  part.add(one);
}

void check_encode(Context& context, const formats::Format& format, const reference::Codec& codec, int d) {
  const std::string name(format.name);
  Errors sums;
  check(context, {"reference", name + " encode", d, name, name}, [&](decide::CheckResult& result) {
    result.variant = "scalar";
    const Sample s = make_sample(context, codec, d, (1 << 15) / d, 0xe2c0de);
    sums = sum_rows(context, s,
                    [&](const float* x, Errors& part) { check_row(context, format, codec, x, d, part); });
    result.max_diff = sums.faults.worst;
    conclude(result, sums.faults.codes + sums.faults.scales, 0,
             fmt::format("{} codes are not the best (worst by {:.3g}), {} scales are not the prescribed ones",
                         sums.faults.codes, sums.faults.worst, sums.faults.scales));
  });
  check(context, {"reference", name + " error against theory", d, name, name},
        [&](decide::CheckResult& result) {
          result.variant = "scalar";
          double theory = codec.theory(d), nmse = sums.error / sums.total;
          if (theory > 0)
            nmse = measured_error(context, format, codec, d);
          else
            theory = sums.least / sums.total;  // no closed form: the double-precision codec on the same rows
          conclude(result, nmse, 1.02 * theory,
                   fmt::format("NMSE {:.6g} on unit Gaussians, theory {:.6g}", nmse, theory));
        });
}

// Back in the model's basis, as a value comes out of the cache.
void check_round_trip(Context& context, const formats::Format& format, const reference::Codec& codec, int d) {
  const std::string name(format.name);
  check(context, {"reference", name + " value round trip", d, "", name}, [&](decide::CheckResult& result) {
    result.variant = "scalar";
    const int rows = 4096 / d * 8;
    const std::vector<float> x = reference::Gaussian(0x70d).vector(size_t(rows) * size_t(d));
    std::vector<std::byte> row(format.row_bytes(d));
    std::vector<float> got(static_cast<size_t>(d));
    Comparison whole;
    for (int r = 0; r < rows; ++r) {
      const float* in = x.data() + size_t(r) * size_t(d);
      std::vector<float> basis(in, in + d);
      to_type_basis(format, formats::kValues, basis.data(), d);
      format.encode_row(context.tcq().table.get(), basis.data(), row.data(), d);
      format.decode_row(context.tcq().table.get(), row.data(), got.data(), d);
      from_type_basis(format, formats::kValues, got.data(), d);
      std::vector<double> want(static_cast<size_t>(d));
      codec.decode(row.data(), d, want.data());
      codec.from_basis(reference::Side::kValues, want.data(), d);
      double norm = 0;
      for (const double w : want) norm += w * w;
      const double bound[] = {32 * 0x1p-24 * std::sqrt(norm / d) + 0x1p-22 * 4 * std::sqrt(norm / d)};
      add(whole, compare(got, want, bound));
    }
    conclude(result, whole);
  });
}

// The stream of the published fixtures, then what is hard: zeros, the smallest, the largest, one outlier.
void check_finite(Context& context, const formats::Format& format, int d) {
  const std::string name(format.name);
  check(context, {"reference", name + " stays finite", d, name, name}, [&](decide::CheckResult& result) {
    result.variant = "scalar";
    reference::FixtureStream stream;
    std::vector<float> x(static_cast<size_t>(d)), y(static_cast<size_t>(d));
    std::vector<std::byte> row(format.row_bytes(d));
    int bad = 0, n = 0;
    for (const float factor : {1.0f, 0.0f, 1e-30f, 1e-8f, 6e4f / 6, std::numeric_limits<float>::denorm_min()})
      for (int repeat = 0; repeat < 4; ++repeat) {
        for (float& v : x) v = factor * stream.next();
        if (repeat == 3) x[size_t(d / 3)] = factor * 6;
        format.encode_row(context.tcq().table.get(), x.data(), row.data(), d);
        format.decode_row(context.tcq().table.get(), row.data(), y.data(), d);
        for (const float v : y) bad += !std::isfinite(v);
        n += d;
      }
    conclude(result, bad, 0, fmt::format("{} of {} values decode to NaN or infinity", bad, n));
  });
}

// Two ways to the same: one softmax over all keys, and the merge of parts of them.
void check_identities(Context& context) {
  for (const int d : context.head_dims())
    check(context, {"reference", "merge of split keys", d, "", ""}, [&](decide::CheckResult& result) {
      result.variant = "double precision";
      reference::AttentionSpec spec{2, 1, d, 0, 1 / std::sqrt(double(d)), 0, 0, 0};
      constexpr int kKeys = 300;
      reference::Gaussian random(0x1d);
      reference::Rows keys, values;
      for (int i = 0; i < kKeys * d; ++i) {
        keys.coded.push_back(2 * random.next());
        values.coded.push_back(random.next());
      }
      const std::vector<float> q = random.vector(size_t(2 * d));
      double worst = 0;
      for (int h = 0; h < 2; ++h) {
        const auto scores = reference::score_head(spec, keys, q, kKeys - 1, h);
        const auto whole = reference::mix_head(spec, scores, values, kKeys - 1, h);
        reference::Part merged;
        for (int begin = 0; begin < kKeys; begin += 77)
          merged = reference::merge(
              merged, reference::part_of(scores, spec, values, kKeys - 1, h, begin, begin + 77));
        for (int i = 0; i < d; ++i) {
          double mixed = 0;  // score, softmax and mix apart
          for (int j = 0; j < kKeys; ++j) mixed += scores.weight[size_t(j)] * values.coded[size_t(j * d + i)];
          worst = std::max({worst, std::fabs(merged.out[size_t(i)] / merged.sum - whole.out[size_t(i)]),
                            std::fabs(mixed - whole.out[size_t(i)])});
        }
      }
      conclude(result, worst, 1e-13, "parts do not add up");
    });
}

}  // namespace

void check_reference(Context& context) {
  for (const formats::Format& format : formats::all()) {
    if (!format.has_role(formats::kKeys) && !format.has_role(formats::kValues)) continue;
    const reference::Codec* codec = context.tcq().codec_of(format.type);
    for (const int d : context.head_dims()) {
      const std::string name(format.name);
      if (!format.takes(d)) {
        not_applicable(context, {"reference", name, d, name, name}, fmt::format("no row of {} values", d));
        continue;
      }
      const auto& used = context.caps().kv_types;
      if (!codec && !std::ranges::count(used, format.type)) {
        not_applicable(context, {"reference", name, d, name, name}, "no kernel of this backend reads it");
        continue;
      }
      if (!codec) {
        check(context, {"reference", name, d, name, name},
              [&](decide::CheckResult&) { fail(ErrorCode::kFailed, "no double-precision reference"); });
        continue;
      }
      check_decode(context, format, *codec, d);
      check_encode(context, format, *codec, d);
      if (format.has_role(formats::kValues)) check_round_trip(context, format, *codec, d);
      check_finite(context, format, d);
    }
  }
  check_identities(context);
}

}  // namespace kvasir::verify
