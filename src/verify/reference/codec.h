// Storage types of a KV cache in double precision, from the description of their bytes alone. A type to come
// is one class in codec.cpp and one row of its list.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verify/reference/basis.h"

namespace kvasir::verify::reference {

// What speaks against a row of bytes as the encoding of given values. Codes that differ from ours only by a
// tie within float arithmetic's error are not counted.
struct RowFaults {
  int codes = 0;          // codes that are not the best for the scale
  double worst = 0;       // how much farther than the best level the worst of them lies, in levels' unit
  int scales = 0;         // scales that are not the rounded ideal one
  double scale_ulps = 0;  // farthest a scale lies from its ideal, in f16 steps (0.5: correctly rounded)
};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;
  virtual size_t row_bytes(int d) const = 0;
  // Rows are in a rotated basis of the type, otherwise in the model's own and these two do nothing.
  virtual bool rotated() const { return false; }
  virtual void to_basis(Side, double* /*x*/, int /*d*/) const {}
  virtual void from_basis(Side, double* /*r*/, int /*d*/) const {}
  // Rounding a query (in the basis) to n codes a side gives scores a standard deviation of this over n
  // sqrt(12), relative to the key's norm: the largest value that is rounded.
  virtual double query_top(const double* q, int d) const;
  // Whole pages are encoded at once, from rows rounded to f16.
  virtual bool open_page() const { return true; }
  virtual void decode(const std::byte* row, int d, double* out) const = 0;
  // Error of decoding in single precision, relative to a row's root mean square, where a value is a long sum.
  virtual double decode_error() const { return 0; }
  // As a kernel reads it that rounds levels to multiples of the largest of them over `codes`.
  virtual void decode_rounded(Side, const std::byte* row, int d, int /*codes*/, double* out) const {
    decode(row, d, out);
  }
  // With a residual that rows carry and attention leaves out; a type without one: as decode.
  virtual void decode_residual(const std::byte* row, int d, double* out) const { decode(row, d, out); }
  // What a kernel multiplies the weight of a value row by before it rounds the product: the row's largest scale.
  virtual double largest_scale(const std::byte* /*row*/, int /*d*/) const { return 1; }
  // The best codes, and the scale each type prescribes, in double precision.
  virtual void encode(const double* x, int d, std::byte* row) const = 0;
  // `best`: what encode gives for x.
  virtual RowFaults check(const double* x, int d, const std::byte* row, const std::byte* best) const = 0;
  // Encoding is a search and slow: measure on fewer rows.
  virtual bool searches() const { return false; }
  // NMSE of unit Gaussian rows in closed form; 0 where there is none (measure encode then).
  virtual double theory(int) const { return 0; }
};

// nullptr when this file has no such type.
const Codec* find_codec(std::string_view name);
std::vector<std::string_view> codec_names();
// tbq3_tcq with other levels than Kvasir's own, 512 of them by state; without a theory.
std::unique_ptr<Codec> make_tcq_codec(std::span<const float> levels);

}  // namespace kvasir::verify::reference
