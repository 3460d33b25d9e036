// tbq3_tcq, from the description of its bytes in docs/formats.md.
//
// Blocks of 128 values rotated by s2 . (H (s1 . x) / sqrt(128)): f16 scale, then 390 bits of which bits 3 t
// .. 3 t + 8 are the state of value t, then zeros up to 52 bytes. A value is scale * level[state]. The scale
// is the least-squares one; when it is 0 the block is zero bytes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "verify/reference/codec_scaled.h"
#include "verify/reference/half.h"
#include "verify/reference/trellis_levels.h"

namespace kvasir::verify::reference {
namespace {

constexpr int kBlock = 128, kBytes = 52, kStates = 512;

// Set bits: values that change sign, the first in the lowest bit of the first byte.
constexpr std::array<uint8_t, 16> kBefore{0x59, 0x03, 0x6a, 0xe4, 0x49, 0x59, 0xf8, 0x42,
                                          0xbb, 0x3b, 0xc6, 0xa4, 0xa9, 0x50, 0xf2, 0x49};
constexpr std::array<uint8_t, 16> kAfter{0x90, 0xee, 0xac, 0x16, 0xdc, 0x8f, 0x62, 0x3f,
                                         0x7a, 0x35, 0xa5, 0xb7, 0x62, 0x65, 0xa5, 0xbe};

void flip(const std::array<uint8_t, 16>& signs, double* x) {
  for (size_t i = 0; i < kBlock; ++i)
    if (signs[i / 8] >> (i % 8) & 1) x[i] = -x[i];
}

class TcqCodec final : public Codec {
 public:
  TcqCodec(std::vector<double> levels, double nmse) : levels_(std::move(levels)), nmse_(nmse) {
    for (const double level : levels_) top_ = std::max(top_, std::fabs(level));
    step_ = double(float(top_) / 127.0f);
    for (const double level : levels_) whole_.push_back(std::round(level / step_));
  }

  std::string_view name() const override { return "tbq3_tcq"; }
  size_t row_bytes(int d) const override { return size_t(d / kBlock * kBytes); }
  bool rotated() const override { return true; }
  void to_basis(Side, double* x, int d) const override {
    for (int b = 0; b < d; b += kBlock) {
      flip(kBefore, x + b);
      hadamard(x + b, kBlock);
      flip(kAfter, x + b);
    }
  }
  void from_basis(Side, double* r, int d) const override {
    for (int b = 0; b < d; b += kBlock) {
      flip(kAfter, r + b);
      hadamard(r + b, kBlock);
      flip(kBefore, r + b);
    }
  }
  bool searches() const override { return true; }
  double theory(int) const override { return nmse_; }

  void decode(const std::byte* row, int d, double* out) const override {
    for (int i = 0; i < d; ++i) out[i] = scale(row, i) * levels_[size_t(state(row, i))];
  }

  double largest_scale(const std::byte* row, int d) const override {
    double top = 0;
    for (int i = 0; i < d; i += kBlock) top = std::max(top, scale(row, i));
    return top;
  }

  // As image_source.h of the CPU has it: levels in whole steps of the largest over 127, then a share of the
  // row's largest scale in 1 / 32768.
  void decode_rounded(Side, const std::byte* row, int d, int /*codes*/, double* out) const override {
    const double top = largest_scale(row, d);
    for (int i = 0; i < d; ++i) {
      const float share = top > 0 ? float(scale(row, i)) / float(top) : 0.0f;
      const double parts = std::min(32767.0, std::nearbyint(double(share) * 32768));
      const double whole = whole_[size_t(state(row, i))];
      out[i] = top * step_ * std::floor((whole * parts + 16384) / 32768);
    }
  }

  void encode(const double* x, int d, std::byte* row) const override {
    std::memset(row, 0, row_bytes(d));
    for (int b = 0; b < d / kBlock; ++b, x += kBlock, row += kBytes) {
      const double norm = root_of_squares(x, kBlock);
      if (norm == 0) continue;
      best_path(x, norm, row);
      const uint16_t stored = to_f16(scale_for(x, row));
      if ((stored & 0x7fff) == 0) std::memset(row, 0, kBytes);
      put_u16(row, stored);
    }
  }

  // Costs are whole numbers: a path may cost more than the best only where a target lies halfway between two.
  RowFaults check(const double* x, int d, const std::byte* row, const std::byte* best) const override {
    RowFaults faults;
    for (int b = 0; b < d / kBlock; ++b, x += kBlock, row += kBytes, best += kBytes) {
      const double norm = root_of_squares(x, kBlock), stored = from_f16(u16_at(row)),
                   ideal = scale_for(x, row);
      const double off = std::fabs(stored - ideal), step = f16_step(ideal);
      if (!(off <= 0.5 * step + kScaleError * std::fabs(ideal))) {
        ++faults.scales;
        faults.scale_ulps = std::max(faults.scale_ulps, off / step);
      }
      faults.codes += byte_at(row, kBytes - 1) != 0 || byte_at(row, kBytes - 2) >> 6 != 0;
      if (norm == 0 || stored == 0) continue;
      double halves = 0;
      for (int t = 0; t < kBlock; ++t) {
        const double v = std::fabs(steps_of(x[t], norm));
        halves += std::fabs(v - std::trunc(v) - 0.5) < 1e-4;
      }
      const double cost = cost_of(x, norm, row), allowed = cost_of(x, norm, best) + 512 * halves;
      if (cost <= allowed) continue;
      ++faults.codes;
      faults.worst = std::max(faults.worst, cost / allowed - 1);
    }
    return faults;
  }

 private:
  static double scale(const std::byte* row, int i) { return from_f16(u16_at(row + i / kBlock * kBytes)); }
  static int state(const std::byte* row, int i) {
    return bits_at(row + i / kBlock * kBytes + 2, i % kBlock * 3, 9);
  }

  // A value of a block of norm 1, in steps of the largest level / 127 and held to it.
  double steps_of(double x, double norm) const { return std::clamp(x / norm * 127 / top_, -127.0, 127.0); }
  double whole_level(int state) const { return whole_[size_t(state)]; }

  double cost_of(const double* x, double norm, const std::byte* block) const {
    double cost = 0;
    for (int t = 0; t < kBlock; ++t) {
      const double miss = std::nearbyint(steps_of(x[t], norm)) - whole_level(state(block, t));
      cost += miss * miss;
    }
    return cost;
  }

  double scale_for(const double* x, const std::byte* block) const {
    double xy = 0, yy = 0;
    for (int t = 0; t < kBlock; ++t) {
      const double y = levels_[size_t(state(block, t))];
      xy += x[t] * y, yy += y * y;
    }
    return yy > 0 ? std::max(0.0, xy / yy) : 0;
  }

  // The cheapest path with free ends: its symbols and the two before them into the stream of a zeroed block.
  // f32 holds every cost exactly.
  void best_path(const double* x, double norm, std::byte* block) const {
    std::array<float, kStates> now{}, level;
    for (size_t s = 0; s < kStates; ++s) level[s] = float(whole_level(int(s)));
    std::array<std::array<uint8_t, kStates / 8>, kBlock> from{};
    for (size_t t = 0; t < kBlock; ++t) {
      std::array<float, kStates / 8> best;
      for (size_t low = 0; low < best.size(); ++low) {
        const auto* first = &now[low * 8];
        from[t][low] = uint8_t(std::min_element(first, first + 8) - first);
        best[low] = first[from[t][low]];
      }
      const float aim = float(std::nearbyint(steps_of(x[t], norm)));
      for (size_t s = 0; s < kStates; ++s) {
        const float miss = aim - level[s];
        now[s] = best[s % 64] + miss * miss;
      }
    }
    size_t s = size_t(std::min_element(now.begin(), now.end()) - now.begin());
    for (size_t t = kBlock; t-- > 0;) {
      put_bits(block + 2, int(3 * t + 6), 3, int(s / 64));
      s = s % 64 * 8 + from[t][s % 64];
    }
    put_bits(block + 2, 0, 6, int(s / 8));
  }

  std::vector<double> levels_, whole_;  // whole_: in whole steps
  double nmse_, top_ = 0, step_ = 0;    // a step is a number of single precision
};

}  // namespace

std::unique_ptr<Codec> make_tcq_codec(std::span<const float> levels) {
  return std::make_unique<TcqCodec>(std::vector<double>(levels.begin(), levels.end()), 0);
}

void add_tcq(std::vector<std::unique_ptr<Codec>>& list) {
  std::vector<double> levels;
  for (const int8_t level : kTcqLevels) levels.push_back(double(float(level) * kTcqUnit));
  list.push_back(std::make_unique<TcqCodec>(levels, kTcqNmse));
}

}  // namespace kvasir::verify::reference
