// Types that are expanded into int8 images: images against the codec, encoding against the scalar code bit
// for bit, producers within the bounds of image_source.h and headwide_body.h and with the same bits on every
// ISA, flash against double precision.
#include "backends/cpu/kernels/attention/image_source.h"
#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "cpu/attention_fixture.h"
#include "formats/qjl1_256.h"

namespace kvasir::cpu::test {
namespace {

constexpr DType kTrellis[] = {DType::tbq2_ht, DType::tbq3_ht, DType::tbq4_ht};
constexpr DType kImages[] = {DType::tbq2_ht, DType::tbq3_ht,  DType::tbq4_ht,  DType::tbq3_0,
                             DType::tbq4_0,  DType::q4_polar, DType::qjl1_256, DType::tbq3_tcq};
constexpr int kSizes[] = {64, 128, 256, 512};

bool keys_only(DType type) { return type == DType::qjl1_256; }
bool takes(DType type, int d) { return formats::require(type).takes(d); }

std::vector<const AttentionKernels*> kernels() {
  std::vector<const AttentionKernels*> out;
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    const AttentionKernels* k = best_attention_kernels(isa);
    if (cpu_supports(isa) && k->isa == isa) out.push_back(k);
  }
  return out;
}

// Four pages of encoded rows whose blocks differ in size, and what they decode to in the type's basis. Of
// qjl1_256: its signs times kSketchScale * norm, 2 a value.
struct Pages {
  DType type;
  int d, width;
  size_t region;
  std::vector<std::byte> bytes;
  std::vector<float> decoded;  // [256][width]
  Pages(DType t, KvSide side, int head_dim, uint32_t seed)
      : type(t), d(head_dim), width(head_dim * image_source(t)->widen), decoded(size_t(256) * width) {
    const auto& format = formats::require(type);
    const size_t row = format.row_bytes(d);
    region = 64 * row;
    bytes.resize(region * 4);
    std::vector<float> x = gaussian(size_t(256) * d, seed);
    std::vector<std::byte> wire(row);
    for (int j = 0; j < 256; ++j) {
      float* r = x.data() + size_t(j) * d;
      for (int i = 0; i < d; ++i) r[i] *= float(1 + j % 5) * (i / 32 % 3 == 1 ? 2.5f : 1.0f);
      if (j == 70) std::fill(r, r + d, 0.0f);
      if (j == 71) std::fill(r, r + d / 2, 0.0f);
      format.encode(r, wire.data(), d);
      pack_row(type, side, d, wire.data(), j % 64, bytes.data() + region * size_t(j / 64));
      float* out = decoded.data() + size_t(j) * width;
      if (type == DType::qjl1_256)
        signs(wire, out);
      else
        format.decode(wire.data(), out, d);
    }
  }
  void signs(const std::vector<std::byte>& wire, float* out) const {
    for (int b = 0; b < d / 128; ++b) {
      formats::BlockQjl1_256 block;
      std::memcpy(&block, wire.data() + size_t(b) * sizeof block, sizeof block);
      for (int j = 0; j < 256; ++j)
        out[b * 256 + j] =
            (block.signs[j / 8] >> (j % 8) & 1 ? 1 : -1) * formats::kSketchScale * bf16_to_f32(block.norm);
    }
  }
};

// A byte's share of the rounding: none for trellis types, whose levels are whole.
double half_step(DType type, double scale) {
  if (type == DType::tbq3_tcq) return scale * (0.5 + 127.0 / 65536 + 1e-4);  // image_source.h
  return formats::require(type).head_wide() ? 1e-6 * scale : scale * 0.52;   // planar_image_body.h
}

TEST(ImageSource, ImagesHoldTheDecodedValues) {
  for (DType type : kImages)
    for (int d : kSizes) {
      if (!takes(type, d)) continue;
      const ImageSource& source = *image_source(type);
      std::vector<std::byte> images(size_t(2 * kMaxHeadDim) * 64);
      const Pages keys(type, KvSide::kKey, d, 3), values(type, KvSide::kValue, d, 4);
      for (int bias : {0, 128}) {
        for (int group = 0; group < 8 && source.keys; ++group) {
          float scales[32];
          source.keys(keys.bytes.data() + keys.region * size_t(group / 2), group % 2, d, bias, images.data(),
                      scales, nullptr, Streams{});
          for (int t = 0; t < 32; ++t)
            for (int i = 0; i < keys.width; ++i) {
              const int place = source.striped ? trellis_step(KvSide::kKey, d, i) : i;
              const size_t at = size_t(place / 4 * 2 + t / 16) * 64 + size_t(t % 16 * 4 + place % 4);
              const double got = scales[t] * int8_t(int(images[at]) - bias);
              ASSERT_NEAR(got, keys.decoded[size_t(group * 32 + t) * keys.width + i],
                          half_step(type, scales[t]))
                  << formats::require(type).name << ' ' << d << " key " << t << " dimension " << i;
            }
        }
        if (keys_only(type)) continue;
        for (int page = 0; page < 4; ++page)
          for (int first = 0, n = source.values_at_once(); first < d; first += n) {
            float scales[kChunk + 64];
            const std::byte* region = values.bytes.data() + values.region * size_t(page);
            source.value_scales(region, d, scales, nullptr);
            source.values(region, d, first, scales, images.data(), nullptr);
            for (int t = 0; t < 64; ++t)
              for (int i = 0; i < d; ++i) {
                const int place = (source.striped ? trellis_step(KvSide::kValue, d, i) : i) - first;
                if (place < 0 || place >= n) continue;
                const size_t at =
                    size_t((place / 32 * 4 + t / 32 * 2 + place % 32 / 16) * 8 + t % 32 / 4) * 64 +
                    size_t(place % 16 * 4 + t % 4);
                const double got = scales[t] * int8_t(int(images[at]));
                ASSERT_NEAR(got, values.decoded[size_t(page * 64 + t) * d + i], half_step(type, scales[t]))
                    << formats::require(type).name << ' ' << d << " value " << t << " dimension " << i;
              }
          }
      }
    }
}

// Rows of every kind: Gaussian, zero, constant, one spike, tiny, large, subnormal f16.
TEST(ImageEncoder, PagesHaveTheBytesOfTheScalarCodec) {
  for (const AttentionKernels* k : kernels())
    for (DType type : kImages)
      for (int d : kSizes)
        for (KvSide side : {KvSide::kKey, KvSide::kValue}) {
          if (!takes(type, d) || (keys_only(type) && side == KvSide::kValue)) continue;
          const bool own =
              !formats::require(type).head_wide() && type != DType::tbq3_tcq;  // code of every ISA
          if (!own && k->isa != best_isa() && d > 64) continue;
          std::vector<float> x = gaussian(size_t(64) * d, uint32_t(d) + uint32_t(type));
          std::vector<std::byte> exact(size_t(64) * d * 2);
          for (int t = 0; t < 64; ++t) {
            float* row = x.data() + size_t(t) * d;
            if (t == 1) std::fill(row, row + d, 0.0f);
            if (t == 2) std::fill(row, row + d, -3.0f);
            if (t == 3) std::fill(row, row + d, 0.0f), row[d - 1] = 100.0f;
            for (int i = 0; i < d; ++i) {
              if (t == 4) row[i] *= 1e-4f;
              if (t == 5) row[i] = i % 2 ? 65504.0f : -65504.0f;
              if (t == 6) row[i] = i == 3 ? 6e-8f : 0.0f;
              if (t == 7) row[i] = row[i] * row[i] * row[i];
              if (t == 8) row[i] = float(i % 7) - 3.0f;
            }
            store_exact_row(side, d, row, t, exact.data());
          }
          const size_t bytes = 64 * formats::require(type).row_bytes(d);
          std::vector<std::byte> want(bytes), got(bytes, std::byte(0xff));
          encode_page_scalar(type, side, d, exact.data(), want.data(), nullptr);
          k->encode_page(type, side, d, exact.data(), got.data(), nullptr);
          EXPECT_EQ(want, got) << isa_name(k->isa) << ' ' << formats::require(type).name << ' ' << d;
        }
}

struct Rows {
  int n;
  int lo[kBlockRows], hi[kBlockRows];
  std::vector<RowTile> tiles;
  Rows(int rows, bool ragged, Isa isa) : n(rows) {
    const int most = isa == Isa::kAvx512 ? 8 : 4;
    for (int i = 0; i < n; ++i) lo[i] = ragged ? 3 + i * 2 : 0, hi[i] = ragged ? 100 + i * 9 : 256;
    for (int row = 0; row < n; row += most) {
      RowTile tile;
      tile.row = row;
      tile.n = std::min(most, n - row);
      tile.lo = lo[row];
      tile.hi = hi[row + tile.n - 1];
      tiles.push_back(tile);
    }
  }
};

std::vector<float> score(const AttentionKernels* k, const Pages& pages, const Rows& rows,
                         const std::vector<float>& q) {
  const KeyProducer& producer = *k->keys(pages.type);
  AlignedBuffer packed(producer.query_bytes(pages.d)), scratch(kProducerScratch);
  std::vector<float> out(size_t(kBlockRows) * kChunk, std::nanf(""));
  for (const RowTile& tile : rows.tiles) {
    const float* pointers[8];
    for (int i = 0; i < tile.n; ++i) pointers[i] = q.data() + size_t(tile.row + i) * pages.d;
    producer.pack_query(pointers, tile, pages.d, 1.0f, packed.data());
  }
  for (int group = 0; group < 8; ++group) {
    ScoreTask task{};
    task.keys = pages.bytes.data() + pages.region * size_t(group / 2);
    task.group = group % 2;
    task.head_dim = pages.d;
    task.query = packed.data();
    task.tiles = rows.tiles.data();
    task.n_tiles = int(rows.tiles.size());
    task.next = group % 3 ? task.keys : nullptr;
    for (auto& values : task.values) values = pages.bytes.data();
    task.scores = out.data() + group * kGroupKeys;
    task.scratch = scratch.data();
    producer.score(task);
  }
  return out;
}

// The sketch in whole numbers against the exact one: six deviations of both roundings, and no sum that 32
// bits cannot hold whatever the query.
TEST(ImageKeys, SketchOfAQueryIsTheProjectionsToItsRounding) {
  constexpr int d = 512, kRows = 3;
  std::vector<float> q = gaussian(size_t(kRows) * d, 33);
  for (int i = 0; i < d; ++i) q[size_t(d + i)] *= i % 128 == 5 ? 40.0f : 1.0f;  // one channel far out
  for (int i = 0; i < d; ++i) q[size_t(2 * d + i)] *= i < 128 ? 0.0f : 1e-20f;
  const float* rows[kRows] = {q.data(), q.data() + d, q.data() + 2 * d};
  std::vector<float> got(size_t(kRows) * kMaxImageDims);
  image_source(DType::qjl1_256)->query(rows, kRows, d, got.data());
  const float* projection = formats::qjl_projection();
  for (int r = 0; r < kRows; ++r)
    for (int block = 0; block < d / 128; ++block) {
      double top = 0, squares = 0;
      for (int i = 0; i < 128; ++i) {
        const double x = rows[r][block * 128 + i];
        top = std::max(top, std::fabs(x));
        squares += x * x;
      }
      const double noise = top * std::sqrt(128 / 12.0) / kSketchCodes + std::sqrt(squares / 12) / kSketchUnit;
      for (int j = 0; j < formats::kSketch; ++j) {
        double want = 0;
        for (int i = 0; i < 128; ++i)
          want += double(rows[r][block * 128 + i]) * projection[i * formats::kSketch + j];
        ASSERT_NEAR(got[size_t(r * kMaxImageDims + block * formats::kSketch + j)], want, 6 * noise)
            << r << ' ' << j;
      }
    }
  for (int j = 0; j < formats::kSketch; ++j) {
    int64_t most = 0;
    for (int i = 0; i < 128; ++i)
      most += std::abs(int(sketch_words()[i / 2 * 2 * formats::kSketch + j * 2 + i % 2]));
    ASSERT_LT(most * kSketchCodes, int64_t(1) << 31) << j;
  }
}

// |s - q . k| <= sum_i (qs / 2 |k8_i| scale + e (|q_i| + qs / 2)), e the byte's own error.
TEST(ImageKeys, ScoresWithinTheBoundAndTheSameOnEveryIsa) {
  for (DType type : kImages)
    for (int d : kSizes) {
      if (!takes(type, d)) continue;
      const Pages pages(type, KvSide::kKey, d, 5);
      for (int n_rows : {1, 3, 13}) {
        const std::vector<float> q = gaussian(size_t(n_rows) * d, 21);
        std::vector<float> first;
        for (const AttentionKernels* k : kernels()) {
          const auto got = score(k, pages, Rows(n_rows, false, k->isa), q);
          const size_t bytes = sizeof(float) * kChunk * size_t(n_rows);
          if (!first.empty()) {
            EXPECT_EQ(0, std::memcmp(first.data(), got.data(), bytes))
                << isa_name(k->isa) << ' ' << formats::require(type).name << ' ' << d;
            continue;
          }
          first = got;
          for (int row = 0; row < n_rows; ++row) {
            std::vector<float> x(q.begin() + row * d, q.begin() + (row + 1) * d);
            if (image_source(type)->query) {
              std::vector<float> wide(kMaxImageDims);
              const float* one = x.data();
              image_source(type)->query(&one, 1, d, wide.data());
              x.assign(wide.begin(), wide.begin() + pages.width);
            }
            double top = 0;
            for (float v : x) top = std::max(top, double(std::fabs(v)));
            for (int j = 0; j < 256; ++j) {
              const float* key = pages.decoded.data() + size_t(j) * pages.width;
              double want = 0, bound = 0, largest = 0;
              for (int i = 0; i < pages.width; ++i) largest = std::max(largest, std::fabs(double(key[i])));
              // The row's scale is at most the largest possible value / 127: levels up to 2.76 of a block.
              const double e = formats::require(type).head_wide() ? 0 : largest * 1.6 / 127 / 2;
              for (int i = 0; i < pages.width; ++i) {
                want += double(x[size_t(i)]) * key[i];
                bound += top / 254 * (std::fabs(key[i]) + e) + e * std::fabs(x[size_t(i)]);
              }
              ASSERT_NEAR(got[size_t(row) * kChunk + j], want, bound * 1.0001)
                  << formats::require(type).name << ' ' << d << " row " << row << " key " << j;
            }
          }
        }
      }
    }
}

std::vector<float> mix(const AttentionKernels* k, const Pages& pages, const Rows& rows,
                       const std::vector<float>& weights, std::vector<float> out) {
  AlignedBuffer scratch(kProducerScratch);
  std::memset(scratch.data(), 0xff, scratch.size());
  MixTask task{};
  const int begin = rows.lo[0], end = rows.hi[rows.n - 1];
  for (int column = begin; column < end;) {
    const int stop = std::min(end, (column / 64 + 1) * 64);
    task.pieces[task.n_pieces++] = {pages.bytes.data() + pages.region * size_t(column / 64), column % 64,
                                    stop - column, column};
    column = stop;
  }
  float keep[kBlockRows], blend[kBlockRows];
  for (int i = 0; i < kBlockRows; ++i) keep[i] = 0.5f, blend[i] = i % 3 ? 0.5f : 1.0f;
  task.head_dim = pages.d;
  task.tiles = rows.tiles.data();
  task.n_tiles = int(rows.tiles.size());
  task.lo = rows.lo;
  task.hi = rows.hi;
  task.weights = weights.data();
  task.keep = keep;
  task.blend = blend;
  task.next_keys = rows.n % 2 ? pages.bytes.data() : nullptr;
  const ValueProducer& producer = *k->values(pages.type);
  std::vector<float> own = out;
  for (int row = 0; row < kBlockRows; ++row)
    to_stripes(out.data() + size_t(row) * pages.d, pages.d, producer.stripes,
               own.data() + size_t(row) * pages.d);
  task.out = own.data();
  task.scratch = scratch.data();
  producer.mix(task);
  for (int row = 0; row < kBlockRows; ++row)
    from_stripes(own.data() + size_t(row) * pages.d, pages.d, producer.stripes,
                 out.data() + size_t(row) * pages.d);
  return out;
}

TEST(ImageValues, MixWithinTheBoundAndTheSameOnEveryIsa) {
  for (DType type : kImages)
    for (int d : kSizes) {
      if (!takes(type, d) || keys_only(type)) continue;
      const Pages pages(type, KvSide::kValue, d, 7);
      std::vector<float> scales(2 * kChunk);
      for (int p = 0; p < 4; ++p)
        image_source(type)->value_scales(pages.bytes.data() + pages.region * size_t(p), d,
                                         &scales[size_t(p * 64)], nullptr);
      for (auto [n_rows, ragged] : {std::pair{1, false}, {3, true}, {13, true}}) {
        std::vector<float> weights(size_t(kBlockRows) * kChunk, std::nanf("")), first;
        const std::vector<float> before = gaussian(size_t(kBlockRows) * d, 33);
        std::mt19937 random(6);
        std::uniform_real_distribution<float> uniform(-12, 0);
        for (const AttentionKernels* k : kernels()) {
          const Rows rows(n_rows, ragged, k->isa);
          for (int row = 0; row < n_rows && first.empty(); ++row)
            for (int j = rows.lo[row]; j < rows.hi[row]; ++j)
              weights[size_t(row) * kChunk + j] = std::exp2(uniform(random));
          const auto got = mix(k, pages, rows, weights, before);
          if (!first.empty()) {
            EXPECT_EQ(0, std::memcmp(first.data(), got.data(), sizeof(float) * size_t(n_rows) * d))
                << isa_name(k->isa) << ' ' << formats::require(type).name << ' ' << d;
            continue;
          }
          first = got;
          for (int row = 0; row < n_rows; ++row) {
            const float* p = weights.data() + size_t(row) * kChunk;
            double m[2] = {0, 0};  // of each 128 keys
            for (int j = rows.lo[row]; j < rows.hi[row]; ++j)
              m[j / 128] = std::max(m[j / 128], double(p[j]) * scales[size_t(j)]);
            for (int i = 0; i < d; ++i) {
              const size_t at = size_t(row) * d + i;
              double want = 0, bound = 1e-6 * std::fabs(before[at]);
              for (int j = rows.lo[row]; j < rows.hi[row]; ++j) {
                const double v = pages.decoded[size_t(j) * d + i], s = scales[size_t(j)];
                want += p[j] * v;
                bound += p[j] * (half_step(type, s) + 1e-6 * std::fabs(v));
                if (s > 0) bound += m[j / 128] / 508 * (std::fabs(v) / s + 0.5);
              }
              ASSERT_NEAR(got[at], before[at] * 0.5 + want * (row % 3 ? 0.5 : 1), bound)
                  << formats::require(type).name << ' ' << d << " row " << row << " dimension " << i;
            }
          }
        }
      }
    }
}

// Largest error of a row against its spread, both as lengths (the bases keep them).
double worst_row(const std::vector<float>& got, const std::vector<double>& want,
                 const std::vector<double>& spread, int d) {
  double most = 0;
  for (size_t at = 0; at < got.size(); at += size_t(d)) {
    double error = 0, length = 0;
    for (size_t i = at; i < at + size_t(d); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      length += spread[i] * spread[i];
    }
    if (!(error >= 0)) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::sqrt(error / length));
  }
  return most;
}

// As head_wide_attention_test.cpp has it: the query's 8 bits and the levels' (0 for trellis types), four
// deviations.
constexpr double kFlashTolerance = 4 * (0.011 + 0.007);

void check_flash(const Shape& s, int n_keys, int first, int count, bool every_isa = false) {
  if (!takes(s.k, s.head_dim) || !takes(s.v, s.head_dim) || keys_only(s.v)) return;
  for (const AttentionInfo& info : attention_variants()) {
    if (info.k != s.k || info.v != s.v || (info.isa != best_isa() && !every_isa)) continue;
    Cache cache(s, n_keys, 3, best_isa());
    if (s.window) cache.evict_before(first - s.window + 1);
    const Queries queries(s, first, count);
    std::vector<double> spread;
    const auto want = reference(cache, queries, &spread);
    const auto got = attend(info.variant, cache, queries, count, 2);
    EXPECT_LT(worst_row(got, want, spread, s.head_dim), info.flash ? kFlashTolerance : 1e-5)
        << attention_name(*info.variant) << ' ' << s.n_head << '/' << s.n_kv << " window " << s.window;
    const auto one = attend(info.variant, cache, queries, 1, 1);
    EXPECT_EQ(0, std::memcmp(one.data(), got.data(), got.size() * sizeof(float)))
        << attention_name(*info.variant) << " batch 1";
  }
}

Shape shape(DType k, DType v, int n_head, int n_kv, int d, int window = 0) {
  return {k, v, n_head, n_kv, d, window, 1.0f / std::sqrt(float(d))};
}

TEST(ImageFlash, EveryHeadSizeWithItselfAndOthers) {
  for (DType type : kImages)
    for (int d : kSizes) {
      check_flash(shape(type, type, 4, 1, d), 100, 97, 3);
      for (DType other : {DType::f16, DType::tbq4_h}) {
        check_flash(shape(type, other, 2, 1, d), 80, 75, 5);
        check_flash(shape(other, type, 2, 1, d), 80, 75, 5);
      }
    }
}

TEST(ImageFlash, GroupsWindowsAndOddRows) {
  for (auto [n_head, n_kv] : {std::pair{2, 2}, {4, 2}, {8, 1}, {3, 1}})
    check_flash(shape(DType::tbq4_ht, DType::tbq3_ht, n_head, n_kv, 64), 290, 279, 11, true);
  for (int window : {100, 256})
    for (DType type : {DType::tbq2_ht, DType::tbq4_0, DType::q4_polar})
      check_flash(shape(type, type, 4, 1, 128, window), 400, 370, 30);
}

TEST(ImageAttention, RefusalsNameTypeAndHeadSize) {
  std::string why;
  EXPECT_EQ(find_attention(DType::q4_polar, DType::f16, 64, best_isa(), true, &why), nullptr);
  EXPECT_NE(why.find("q4_polar at head size 64"), std::string::npos) << why;
  EXPECT_EQ(find_attention(DType::qjl1_256, DType::f16, 64, best_isa(), false, &why), nullptr);
  EXPECT_NE(why.find("qjl1_256 at head size 64"), std::string::npos) << why;
  EXPECT_EQ(find_attention(DType::f16, DType::qjl1_256, 128, best_isa(), true, &why), nullptr);
  EXPECT_NE(why.find("V type qjl1_256 (keys only)"), std::string::npos) << why;
}

}  // namespace
}  // namespace kvasir::cpu::test
