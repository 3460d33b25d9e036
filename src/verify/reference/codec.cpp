#include <algorithm>
#include <cmath>
#include <cstring>

#include "verify/reference/codec_scaled.h"
#include "verify/reference/half.h"
#include "verify/reference/lloyd.h"

namespace kvasir::verify::reference {
namespace {

// f32, f16, bf16: each value alone.
template <typename Get, typename Put>
class ValueCodec final : public Codec {
 public:
  ValueCodec(std::string_view name, size_t bytes, Get get, Put put)
      : name_(name), bytes_(bytes), get_(get), put_(put) {}
  std::string_view name() const override { return name_; }
  size_t row_bytes(int d) const override { return bytes_ * size_t(d); }
  bool open_page() const override { return false; }
  void decode(const std::byte* row, int d, double* out) const override {
    for (int i = 0; i < d; ++i) out[i] = get_(row + bytes_ * size_t(i));
  }
  void encode(const double* x, int d, std::byte* row) const override {
    for (int i = 0; i < d; ++i) put_(x[i], row + bytes_ * size_t(i));
  }
  RowFaults check(const double* x, int d, const std::byte* row, const std::byte*) const override {
    RowFaults faults;
    std::byte best[4];
    for (int i = 0; i < d; ++i) {
      put_(x[i], best);
      if (std::memcmp(best, row + bytes_ * size_t(i), bytes_) == 0) continue;
      ++faults.codes;
      faults.worst = std::max(faults.worst, std::fabs(get_(best) - get_(row + bytes_ * size_t(i))));
    }
    return faults;
  }

 private:
  std::string_view name_;
  size_t bytes_;
  Get get_;
  Put put_;
};

double f32_at(const std::byte* p) {
  float v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
void put_f32(double x, std::byte* p) {
  const float v = float(x);
  std::memcpy(p, &v, sizeof v);
}
double f16_at(const std::byte* p) { return from_f16(u16_at(p)); }
void put_f16(double x, std::byte* p) { put_u16(p, to_f16(x)); }
double bf16_at(const std::byte* p) { return from_bf16(u16_at(p)); }
void put_bf16(double x, std::byte* p) { put_u16(p, to_bf16(x)); }

// q8_0, q5_0, q4_0: 32 values, an f16 scale first. q8_0: int8 codes, scale = max |x| / 127. The others: the
// value of largest magnitude (the first of equals) becomes the lowest level; code j and j + 16 share byte j,
// low nibble first; q5_0 has their fifth bits, value j in bit j, between scale and nibbles.
class BlockCodec final : public ScaledCodec {
 public:
  BlockCodec(std::string_view name, int bits) : name_(name), bits_(bits) {
    for (int q = -half(); q < half(); ++q) levels_.push_back(q);
  }
  std::string_view name() const override { return name_; }
  size_t row_bytes(int d) const override { return size_t(d / 32) * bytes(); }

 protected:
  int group(int) const override { return 32; }
  const std::vector<double>& levels_of(int) const override { return levels_; }
  int code(const std::byte* row, int, int i) const override {
    const std::byte* block = row + size_t(i / 32) * bytes();
    const int j = i % 32;
    if (bits_ == 8) return int(int8_t(byte_at(block, size_t(2 + j)))) + 128;
    int q = byte_at(block, nibbles() + size_t(j % 16)) >> (j / 16 * 4) & 15;
    if (bits_ == 5) q |= (byte_at(block, size_t(2 + j / 8)) >> (j % 8) & 1) << 4;
    return q;
  }
  void set_code(std::byte* row, int, int i, int code) const override {
    std::byte* block = row + size_t(i / 32) * bytes();
    const int j = i % 32;
    if (bits_ == 8) {
      block[2 + j] = std::byte(uint8_t(int8_t(code - 128)));
      return;
    }
    block[nibbles() + size_t(j % 16)] |= std::byte((code & 15) << (j / 16 * 4));
    if (bits_ == 5) block[2 + j / 8] |= std::byte((code >> 4) << (j % 8));
  }
  uint16_t scale(const std::byte* row, int, int g) const override {
    return u16_at(row + size_t(g) * bytes());
  }
  void set_scale(std::byte* row, int, int g, uint16_t scale) const override {
    put_u16(row + size_t(g) * bytes(), scale);
  }
  double unit_before(const double* x, int d) const override { return round_f16(ideal_scale(x, {}, {}, d)); }
  double unit_given(const double*, double stored, int) const override { return stored; }
  double ideal_scale(const double* x, const std::vector<int>&, const std::vector<double>&,
                     int) const override {
    double largest = 0;
    for (int i = 0; i < 32; ++i)
      if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
    return bits_ == 8 ? std::fabs(largest) / 127 : largest / -half();
  }

 private:
  int half() const { return 1 << (bits_ - 1); }
  size_t nibbles() const { return bits_ == 5 ? 6 : 2; }
  size_t bytes() const { return bits_ == 8 ? 34 : nibbles() + 16; }
  std::string_view name_;
  int bits_;
  std::vector<double> levels_;
};

// tbq2_h, tbq3_h, tbq4_h: a row is one head in the rotated basis; code i in bits b i .. b i + b - 1, least
// significant bit first, then one f16 scale. Codes are chosen for r / rms(r), levels of the d-sphere; the
// scale is the least-squares one for the chosen levels; when it is 0 the row is zero bytes.
class HeadCodec final : public ScaledCodec {
 public:
  HeadCodec(std::string_view name, int bits) : name_(name), bits_(bits) {}
  std::string_view name() const override { return name_; }
  size_t row_bytes(int d) const override { return size_t(d * bits_ / 8 + 2); }
  bool rotated() const override { return true; }
  void to_basis(Side side, double* x, int d) const override { rotate(side, x, d); }
  void from_basis(Side side, double* r, int d) const override { unrotate(side, r, d); }
  double theory(int d) const override { return sphere_levels(bits_, d).nmse; }

 protected:
  int group(int d) const override { return d; }
  const std::vector<double>& levels_of(int d) const override { return sphere_levels(bits_, d).level; }
  int code(const std::byte* row, int, int i) const override { return bits_at(row, i * bits_, bits_); }
  void set_code(std::byte* row, int, int i, int code) const override {
    put_bits(row, i * bits_, bits_, code);
  }
  uint16_t scale(const std::byte* row, int d, int) const override { return u16_at(row + d * bits_ / 8); }
  void set_scale(std::byte* row, int d, int, uint16_t scale) const override {
    put_u16(row + d * bits_ / 8, scale);
  }
  double unit_before(const double* x, int d) const override {
    return root_of_squares(x, d) / std::sqrt(double(d));
  }
  double unit_given(const double* x, double stored, int d) const override {
    return stored == 0 ? 0 : unit_before(x, d);
  }
  double ideal_scale(const double* x, const std::vector<int>& codes, const std::vector<double>& levels,
                     int) const override {
    return least_squares(x, codes, levels);
  }
  bool clears(uint16_t stored) const override { return (stored & 0x7fff) == 0; }

 private:
  std::string_view name_;
  int bits_;
};

const std::vector<std::unique_ptr<Codec>>& all_codecs() {
  static const std::vector<std::unique_ptr<Codec>> all = [] {
    std::vector<std::unique_ptr<Codec>> list;
    list.push_back(
        std::make_unique<ValueCodec<decltype(&f32_at), decltype(&put_f32)>>("f32", 4, f32_at, put_f32));
    list.push_back(
        std::make_unique<ValueCodec<decltype(&f16_at), decltype(&put_f16)>>("f16", 2, f16_at, put_f16));
    list.push_back(
        std::make_unique<ValueCodec<decltype(&bf16_at), decltype(&put_bf16)>>("bf16", 2, bf16_at, put_bf16));
    list.push_back(std::make_unique<BlockCodec>("q8_0", 8));
    list.push_back(std::make_unique<BlockCodec>("q5_0", 5));
    list.push_back(std::make_unique<BlockCodec>("q4_0", 4));
    list.push_back(std::make_unique<HeadCodec>("tbq2_h", 2));
    list.push_back(std::make_unique<HeadCodec>("tbq3_h", 3));
    list.push_back(std::make_unique<HeadCodec>("tbq4_h", 4));
    add_published(list);
    add_trellis(list);
    add_tcq(list);
    return list;
  }();
  return all;
}

}  // namespace

double Codec::query_top(const double* q, int d) const {
  double top = 0;
  for (int i = 0; i < d; ++i) top = std::max(top, std::fabs(q[i]));
  return top;
}

const Codec* find_codec(std::string_view name) {
  for (const auto& codec : all_codecs())
    if (codec->name() == name) return codec.get();
  return nullptr;
}

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> names;
  for (const auto& codec : all_codecs()) names.push_back(codec->name());
  return names;
}

}  // namespace kvasir::verify::reference
