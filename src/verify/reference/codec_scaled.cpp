#include "verify/reference/codec_scaled.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "verify/reference/half.h"

namespace kvasir::verify::reference {
namespace {

int nearest(const std::vector<double>& levels, double v) {
  const auto upper = std::lower_bound(levels.begin(), levels.end(), v);
  if (upper == levels.begin()) return 0;
  if (upper == levels.end()) return int(levels.size()) - 1;
  return int(upper - levels.begin()) - (v - *(upper - 1) <= *upper - v ? 1 : 0);
}

}  // namespace

int bits_at(const std::byte* stream, int at, int bits) {
  const size_t first = size_t(at) / 8, last = size_t(at + bits - 1) / 8;  // neighbours, or one byte
  return ((byte_at(stream, first) | byte_at(stream, last) << (last > first ? 8 : 0)) >> (at % 8)) &
         ((1 << bits) - 1);
}

void put_bits(std::byte* stream, int at, int bits, int value) {
  for (int b = 0; b < bits; ++b) stream[(at + b) / 8] |= std::byte((value >> b & 1) << ((at + b) % 8));
}

double root_of_squares(const double* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return std::sqrt(sum);
}

double least_squares(const double* x, const std::vector<int>& codes, const std::vector<double>& levels) {
  double product = 0, square = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const double level = levels[size_t(codes[i])];
    product += x[i] * level;
    square += level * level;
  }
  return square > 0 ? product / square : 0;
}

void ScaledCodec::decode(const std::byte* row, int d, double* out) const {
  const std::vector<double>& levels = levels_of(d);
  const int n = group(d);
  for (int g = 0; g < d / n; ++g) {
    const double factor = from_f16(scale(row, d, g));
    for (int i = g * n; i < (g + 1) * n; ++i) out[i] = factor * levels[size_t(code(row, d, i))];
  }
}

namespace {

// (a b + 2^14) / 2^15, rounded down.
int product15(int a, int b) { return int(std::floor((double(a) * b + 16384) / 32768)); }

}  // namespace

double ScaledCodec::largest_scale(const std::byte* row, int d) const {
  double top = 0;
  for (int g = 0; g < d / group(d); ++g) top = std::max(top, from_f16(scale(row, d, g)));
  return top;
}

void ScaledCodec::decode_rounded(Side side, const std::byte* row, int d, int codes, double* out) const {
  // Of keys, whole numbers of steps of the group's own largest level; of values, of the row's largest value,
  // whichever group has it. Ties are single precision's
  // choice, as planar_image_body.h has it: near-ties are far more than rounding in the rest.
  const std::vector<double>& levels = levels_of(d);
  const double top = largest_scale(row, d);
  const float largest = float(levels.back() / level_unit()),
              unit = float(level_unit()) * largest / float(codes);
  const float inverse = top > 0 ? 1.0f / (float(top) * unit) : 0.0f;
  const double step = top * levels.back() / codes;
  for (int g = 0; g < d / group(d); ++g) {
    const float of_row = float(from_f16(scale(row, d, g))) * (unit * 32768.0f) * inverse;
    const int share = int(std::nearbyint(std::clamp(of_row, 0.0f, 32767.0f)));
    std::vector<double> rounded;
    for (const double level : levels) {
      const float whole = float(level / level_unit()) * (float(codes) / largest);
      const int wide = int(std::lround(float(level / level_unit()) * (float(128 * codes) / largest)));
      if (side == Side::kValues && shares_in_15_bits())
        rounded.push_back(step * product15(product15(wide, share), 256));
      else
        rounded.push_back(from_f16(scale(row, d, g)) * levels.back() / codes * std::nearbyint(whole));
    }
    for (int i = g * group(d); i < (g + 1) * group(d); ++i) out[i] = rounded[size_t(code(row, d, i))];
  }
}

void ScaledCodec::encode(const double* x, int d, std::byte* row) const {
  std::memset(row, 0, row_bytes(d));
  const std::vector<double>& levels = levels_of(d);
  std::vector<int> codes(static_cast<size_t>(group(d)));
  for (int g = 0; g < d / group(d); ++g) {
    const double* values = x + g * group(d);
    const double unit = unit_before(values, d);
    for (int i = 0; i < group(d); ++i)
      codes[size_t(i)] = nearest(levels, unit > 0 || unit < 0 ? values[i] / unit : 0);
    const double ideal = ideal_scale(values, codes, levels, d);
    const uint16_t stored = to_f16(ideal);
    set_scale(row, d, g, stored);
    if (clears(stored)) continue;
    for (int i = 0; i < group(d); ++i) set_code(row, d, g * group(d) + i, codes[size_t(i)]);
    finish(values, d, g, row);
  }
}

RowFaults ScaledCodec::check(const double* x, int d, const std::byte* row, const std::byte*) const {
  RowFaults faults;
  const std::vector<double>& levels = levels_of(d);
  std::vector<int> codes(static_cast<size_t>(group(d)));
  for (int g = 0; g < d / group(d); ++g) {
    const double* values = x + g * group(d);
    for (int i = 0; i < group(d); ++i) codes[size_t(i)] = code(row, d, g * group(d) + i);
    const double stored = from_f16(scale(row, d, g)), ideal = ideal_scale(values, codes, levels, d);
    const double off = std::fabs(stored - ideal), step = f16_step(ideal);
    if (!(off <= 0.5 * step + kScaleError * std::fabs(ideal))) {
      ++faults.scales;
      faults.scale_ulps = std::max(faults.scale_ulps, off / step);
    }
    faults.codes += other_faults(values, d, g, row);
    const double unit = unit_given(values, stored, d);
    if (unit == 0) continue;
    for (int i = 0; i < group(d); ++i) {
      const double v = values[i] / unit;
      const double best = std::fabs(v - levels[size_t(nearest(levels, v))]);
      const double excess = std::fabs(v - levels[size_t(codes[size_t(i)])]) - best;
      if (excess <= kTie * std::max(1.0, std::fabs(v))) continue;
      ++faults.codes;
      faults.worst = std::max(faults.worst, excess);
    }
  }
  return faults;
}

}  // namespace kvasir::verify::reference
