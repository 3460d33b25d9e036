// Types of a scale a group and a level a value: value = scale * level(code). What a type says is where its
// codes and scales lie, its levels, the value a code is chosen for, and its ideal scale.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "verify/reference/codec.h"

namespace kvasir::verify::reference {

// Error of a normalised value computed in single precision, relative to its size: a division, a square root
// and sums.
inline constexpr double kTie = 0x1p-19;
// The same of a scale, relative.
inline constexpr double kScaleError = 0x1p-19;

inline int byte_at(const std::byte* p, size_t i) { return std::to_integer<int>(p[i]); }
inline uint16_t u16_at(const std::byte* p) { return uint16_t(byte_at(p, 0) | byte_at(p, 1) << 8); }
inline void put_u16(std::byte* p, uint16_t v) {
  p[0] = std::byte(v & 255);
  p[1] = std::byte(v >> 8);
}
// `bits` bits of a little-endian stream, from bit `at`.
int bits_at(const std::byte* stream, int at, int bits);
void put_bits(std::byte* stream, int at, int bits, int value);

class ScaledCodec : public Codec {
 public:
  void decode(const std::byte* row, int d, double* out) const override;
  void decode_rounded(Side side, const std::byte* row, int d, int codes, double* out) const override;
  double largest_scale(const std::byte* row, int d) const override;
  void encode(const double* x, int d, std::byte* row) const override;
  RowFaults check(const double* x, int d, const std::byte* row, const std::byte* best) const override;

 protected:
  virtual int group(int d) const = 0;
  virtual const std::vector<double>& levels_of(int d) const = 0;
  // What the published levels are multiplied by to become these.
  virtual double level_unit() const { return 1; }
  // Whether kernels make a group's levels of values of a row's largest by whole numbers of 15 bits.
  virtual bool shares_in_15_bits() const { return false; }
  virtual int code(const std::byte* row, int d, int i) const = 0;
  virtual void set_code(std::byte* row, int d, int i, int code) const = 0;
  virtual uint16_t scale(const std::byte* row, int d, int g) const = 0;
  virtual void set_scale(std::byte* row, int d, int g, uint16_t scale) const = 0;
  // The codes are the levels nearest to value / unit; 0: every value is 0. Before: nothing is stored yet.
  virtual double unit_before(const double* x, int d) const = 0;
  virtual double unit_given(const double* x, double stored_scale, int d) const = 0;
  virtual double ideal_scale(const double* x, const std::vector<int>& codes,
                             const std::vector<double>& levels, int d) const = 0;
  // A scale of zero leaves codes of zero bits.
  virtual bool clears(uint16_t) const { return false; }
  // What else a group holds: written after its codes, and checked (a count of faults).
  virtual void finish(const double* /*x*/, int /*d*/, int /*g*/, std::byte* /*row*/) const {}
  virtual int other_faults(const double* /*x*/, int /*d*/, int /*g*/, const std::byte* /*row*/) const {
    return 0;
  }
};

// Least squares: sum x level / sum level^2; 0 when every level is 0.
double least_squares(const double* x, const std::vector<int>& codes, const std::vector<double>& levels);
double root_of_squares(const double* x, int n);

// The published block types (codec_published.cpp).
void add_published(std::vector<std::unique_ptr<Codec>>& list);
// The trellis types (codec_trellis.cpp).
void add_trellis(std::vector<std::unique_ptr<Codec>>& list);
// tbq3_tcq (codec_tcq.cpp).
void add_tcq(std::vector<std::unique_ptr<Codec>>& list);

}  // namespace kvasir::verify::reference
