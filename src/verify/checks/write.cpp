// write: what kv_append leaves in a cache, read back row by row: the scalar codec's bytes, what double
// precision would have chosen, and the error of a row against the least there can be.
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "formats/format.h"
#include "verify/checks/context.h"
#include "verify/checks/rig.h"
#include "verify/reference/codec.h"
#include "verify/reference/half.h"

namespace kvasir::verify {
namespace {

using backends::PagePart;

constexpr int kTokens = 4 * 64 + 10, kHeads = 4;

RigSpec write_spec(const TcqUse& tcq, DType type, bool keys, int head_dim) {
  RigSpec spec;
  spec.tcq = tcq;
  spec.k = keys ? type : DType::f32;
  spec.v = keys ? DType::f32 : type;
  spec.head_dim = head_dim;
  spec.n_kv = spec.n_head = kHeads;
  spec.lengths = {kTokens};
  spec.hard_rows = true;
  spec.max_rows = 100;  // pages end inside steps, and steps inside pages
  spec.seed = 0x3217e + uint64_t(type) + uint64_t(head_dim);
  return spec;
}

struct Written {
  int64_t bytes = 0, different = 0;  // against the scalar codec
  reference::RowFaults faults;       // against double precision
  int64_t rows = 0, bad_rows = 0;
  double error = 0, least = 0,
         total = 0;       // squares, of whole rows: ours, the reference's own encoding, the values
  double worst_step = 0;  // of exact rows, in f16 steps
};

void add(reference::RowFaults& whole, const reference::RowFaults& part) {
  whole.codes += part.codes;
  whole.scales += part.scales;
  whole.worst = std::max(whole.worst, part.worst);
  whole.scale_ulps = std::max(whole.scale_ulps, part.scale_ulps);
}

void count(Written& w, const reference::RowFaults& faults) {
  w.bad_rows += faults.codes > 0 || faults.scales > 0;
  add(w.faults, faults);
}

void add(Written& whole, const Written& part) {
  add(whole.faults, part.faults);
  whole.bytes += part.bytes;
  whole.different += part.different;
  whole.rows += part.rows;
  whole.bad_rows += part.bad_rows;
  whole.error += part.error;
  whole.least += part.least;
  whole.total += part.total;
  whole.worst_step = std::max(whole.worst_step, part.worst_step);
}

// One row as it was given, in the basis of its type: by the product's codec, and in double precision.
struct Given {
  std::vector<float> product;
  std::vector<double> exact;
  Given(const reference::Codec& codec, bool keys, std::span<const float> x)
      : product(x.begin(), x.end()), exact(x.begin(), x.end()) {
    to_type_basis(formats::require(codec.name(), keys ? formats::kKeys : formats::kValues),
                  keys ? formats::kKeys : formats::kValues, product.data(), int(x.size()));
    codec.to_basis(keys ? reference::Side::kKeys : reference::Side::kValues, exact.data(), int(x.size()));
  }
};

void check_exact_row(Written& w, const Given& given, const std::byte* bytes) {
  double norm = 0;
  for (const double x : given.exact) norm += x * x;
  norm = std::sqrt(norm / double(given.exact.size()));
  for (size_t i = 0; i < given.product.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, bytes + 2 * i, 2);
    w.different += half != f32_to_f16(given.product[i]) ? 2 : 0;
    w.bytes += 2;
    // Half a step, and what single precision makes of the rotation.
    const double off = std::fabs(reference::from_f16(half) - given.exact[i]) - 16 * 0x1p-24 * norm;
    w.worst_step = std::max(w.worst_step, off / reference::f16_step(given.exact[i]));
  }
}

void check_coded_row(Written& w, const RigSpec& spec, DType type, std::span<const double> original,
                     std::vector<double> source, const std::byte* bytes) {
  const reference::Codec& codec = *spec.codec(type);
  const int d = int(source.size());
  const formats::Format& format = formats::require(type);
  const std::vector<float> rounded(source.begin(), source.end());
  std::vector<std::byte> expected(format.row_bytes(d));
  format.encode_row(spec.tcq.table.get(), rounded.data(), expected.data(), d);
  for (size_t i = 0; i < expected.size(); ++i) w.different += expected[i] != bytes[i];
  w.bytes += int64_t(expected.size());
  // A search in double precision is slow: the bytes, compared on every row, carry its verdict on one in eight
  // to the rest.
  if (w.rows++ % 8 != 0 && codec.searches()) return;
  codec.encode(source.data(), d, expected.data());
  count(w, codec.check(source.data(), d, bytes, expected.data()));
  std::vector<double> ours(source.size()), best(source.size());
  codec.decode(bytes, d, ours.data());
  codec.decode(expected.data(), d, best.data());
  for (size_t i = 0; i < original.size(); ++i) {
    w.error += (ours[i] - original[i]) * (ours[i] - original[i]);
    w.least += (best[i] - original[i]) * (best[i] - original[i]);
    w.total += original[i] * original[i];
  }
}

// The rows of one head of one page, as the cache holds them.
struct PageRows {
  int page, head;
  std::vector<std::byte> exact, coded;  // empty when there are none
};

void read_page(const Rig& rig, bool keys, PageRows& rows) {
  const bool open = rig.has_exact(keys ? reference::Side::kKeys : reference::Side::kValues);
  const auto part = [&](PagePart of_keys, PagePart of_values) {
    return rig.page(0, rows.page, rows.head, keys ? of_keys : of_values);
  };
  if (open) rows.exact = part(PagePart::kExactKeys, PagePart::kExactValues);
  if (!open || (rows.page + 1) * 64 <= kTokens) rows.coded = part(PagePart::kKeys, PagePart::kValues);
}

Written check_page(const Rig& rig, const reference::Codec& codec, DType type, bool keys,
                   const PageRows& rows) {
  Written w;
  const int d = rig.spec().head_dim;
  for (int t = 0; t < std::min(64, kTokens - rows.page * 64); ++t) {
    const int pos = rows.page * 64 + t;
    const auto x = (keys ? rig.key(0, pos) : rig.value(0, pos)).subspan(size_t(rows.head * d), size_t(d));
    const Given given(codec, keys, x);
    std::vector<double> source = given.exact;
    if (!rows.exact.empty()) {
      const std::byte* row = rows.exact.data() + size_t(t) * size_t(d) * 2;
      check_exact_row(w, given, row);
      reference::f16_row(row, d, source.data());
    }
    if (!rows.coded.empty())
      check_coded_row(w, rig.spec(), type, given.exact, source,
                      rows.coded.data() + size_t(t) * codec.row_bytes(d));
  }
  return w;
}

Written read_back(Context& context, const Rig& rig, const reference::Codec& codec, DType type, bool keys) {
  std::vector<PageRows> pages;
  for (int p = 0; p * 64 < kTokens; ++p)
    for (int head = 0; head < kHeads; ++head) pages.push_back({p, head, {}, {}});
  if (!rig.reads_in_parallel())
    for (PageRows& rows : pages) read_page(rig, keys, rows);
  std::vector<Written> parts(pages.size());
  for_each(context.workers(), int64_t(pages.size()), [&](int64_t i) {
    if (rig.reads_in_parallel()) read_page(rig, keys, pages[size_t(i)]);
    parts[size_t(i)] = check_page(rig, codec, type, keys, pages[size_t(i)]);
  });
  Written whole;
  for (const Written& part : parts) add(whole, part);
  return whole;
}

void one(Context& context, DType type, bool keys, int head_dim) {
  const std::string name(type_name(type)), side = keys ? " keys" : " values";
  const auto label = [&](const char* what) {
    return Label{"write", name + side + what, head_dim, keys ? name : "f32", keys ? "f32" : name};
  };
  if (!formats::require(type).takes(head_dim)) {
    not_applicable(context, label(""),
                   fmt::format("head size {} is refused (dispatch checks that)", head_dim));
    return;
  }
  Written w;
  std::string variant;
  bool ran = false;
  check(context, label(", bytes of the scalar codec"), [&](decide::CheckResult& result) {
    const reference::Codec* codec = context.tcq().codec_of(type);
    if (!codec) fail(ErrorCode::kFailed, "type {} has no double-precision reference", name);
    Rig rig(context.backend(), write_spec(context.tcq(), type, keys, head_dim));
    variant = result.variant = rig.variant();
    rig.run_all();
    w = read_back(context, rig, *codec, type, keys);
    ran = true;
    const double allowed = context.same_bits() ? 0 : double(w.bytes) * 0.01;
    conclude(result, double(w.different), allowed,
             fmt::format("{} of {} bytes differ", w.different, w.bytes));
  });
  if (!ran) return;
  check(context, label(", choices in double precision"), [&](decide::CheckResult& result) {
    result.variant = variant;
    result.max_diff = std::max(w.faults.worst, w.worst_step);
    const double steps = w.worst_step > 0.501 ? w.worst_step : 0;
    conclude(result, double(w.bad_rows) + steps, 0,
             fmt::format(
                 "{} of {} rows: {} codes (worst {:.3g} from the best), {} scales (worst {:.3g} f16 steps); "
                 "exact rows within {:.3f} steps",
                 w.bad_rows, w.rows, w.faults.codes, w.faults.worst, w.faults.scales, w.faults.scale_ulps,
                 w.worst_step));
  });
  check(context, label(", error against the least"), [&](decide::CheckResult& result) {
    result.variant = variant;
    const double nmse = w.error / w.total, least = w.least / w.total;
    conclude(result, nmse, 1.02 * least,
             fmt::format("NMSE {:.6g}, the least of these rows is {:.6g}", nmse, least));
  });
}

}  // namespace

void check_write(Context& context) {
  for (const int head_dim : context.head_dims()) {
    for (const DType type : context.kv_types(formats::kKeys)) one(context, type, true, head_dim);
    for (const DType type : context.kv_types(formats::kValues)) one(context, type, false, head_dim);
  }
}

}  // namespace kvasir::verify
