// Head-wide KV types in attention: layout, rotation and encoding against the scalar code bit for bit; scores
// and mixes against double precision over the decoded values, within the bounds that headwide_body.h states.
#include "backends/cpu/kernels/attention/kernels.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "cpu/attention_fixture.h"
#include "formats/tbq_h.h"

namespace kvasir::cpu::test {
namespace {

constexpr DType kHeadWide[] = {DType::tbq2_h, DType::tbq3_h, DType::tbq4_h};
constexpr int kSizes[] = {64, 128, 256, 512};

int bits_of(DType type) { return type == DType::tbq2_h ? 2 : type == DType::tbq3_h ? 3 : 4; }

float top_level(DType type, int d) {
  switch (type) {
    case DType::tbq2_h:
      return formats::head_codebook<2>(d).level.back();
    case DType::tbq3_h:
      return formats::head_codebook<3>(d).level.back();
    default:
      return formats::head_codebook<4>(d).level.back();
  }
}

std::vector<const AttentionKernels*> kernels() {
  std::vector<const AttentionKernels*> out;
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    const AttentionKernels* k = best_attention_kernels(isa);
    if (cpu_supports(isa) && k->isa == isa) out.push_back(k);
  }
  return out;
}

std::string name_of(const AttentionKernels* k, DType type, int d) {
  return fmt::format("{} {} {}", isa_name(k->isa), formats::require(type).name, d);
}

int code_at(const std::byte* wire, int bits, int i) {
  int code = 0;
  for (int b = 0; b < bits; ++b)
    code |= int((wire[(i * bits + b) / 8] >> ((i * bits + b) % 8)) & std::byte(1)) << b;
  return code;
}

// The places kv_page.h documents, spelt out bit by bit.
int stored_code(const std::byte* block, int bits, int image, int byte) {
  const auto bit = [&](int line, int at) { return int((block[line * 64 + byte] >> at) & std::byte(1)); };
  int code = 0;
  for (int b = 0; b < bits; ++b) {
    if (bits == 4) code |= bit(image / 2, image % 2 * 4 + b) << b;
    if (bits == 2) code |= bit(image / 4, image % 4 * 2 + b) << b;
    if (bits == 3)
      code |= (image < 6 ? bit(image / 2, image % 2 * 3 + b)
               : b < 2   ? bit(image - 6, 6 + b)
                         : bit(2, image))
              << b;
  }
  return code;
}

TEST(HeadWidePage, LiesAsDocumented) {
  std::mt19937 random(2);
  for (DType type : kHeadWide)
    for (int d : kSizes)
      for (KvSide side : {KvSide::kKey, KvSide::kValue}) {
        const int bits = bits_of(type);
        const size_t row = formats::require(type).row_bytes(d), block_bytes = size_t(64 * bits);
        std::vector<std::byte> region(row * 64, std::byte(0xff)), wire(row * 64);
        for (auto& b : wire) b = std::byte(random());
        for (int t = 0; t < 64; ++t) pack_row(type, side, d, wire.data() + row * size_t(t), t, region.data());
        for (int t = 0; t < 64; ++t) {
          const std::byte* w = wire.data() + row * size_t(t);
          EXPECT_EQ(0, std::memcmp(region.data() + size_t(64 * d / 8 * bits + 2 * t), w + d / 8 * bits, 2));
          for (int i = 0; i < d; ++i) {
            const int block =
                side == KvSide::kKey ? t / 32 * (d / 16) + i / 16 : i / 32 * 4 + t / 32 * 2 + i % 32 / 16;
            const int image = side == KvSide::kKey ? t % 32 / 16 + i % 16 / 4 * 2 : t % 32 / 4;
            const int byte = side == KvSide::kKey ? t % 16 * 4 + i % 4 : i % 16 * 4 + t % 4;
            ASSERT_EQ(stored_code(region.data() + size_t(block) * block_bytes, bits, image, byte),
                      code_at(w, bits, i));
          }
        }
      }
}

// Rows that stress an encoder, by token.
std::vector<float> hard_row(int token, int d, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(d));
  const float sigmas[] = {1, 0.01f, 300, 1e-6f, 8000};
  for (float& v : x) v = std::clamp(normal(random) * sigmas[token % 5], -65504.0f, 65504.0f);
  switch (token % 16) {
    case 1:
      std::fill(x.begin(), x.end(), 0.0f);
      break;
    case 3:
      std::fill(x.begin(), x.end(), 65504.0f);
      break;
    case 5:
      for (size_t i = 0; i < x.size(); ++i) x[i] = i % 3 ? -65504.0f : 65504.0f;
      break;
    case 7:  // zeros tie at the middle
      std::fill(x.begin(), x.end(), 0.0f);
      x[random() % x.size()] = -3.5f;
      break;
    case 9:  // the scale underflows
      std::fill(x.begin(), x.end(), 0.0f);
      x[random() % x.size()] = 0x1p-24f;
      break;
    case 11:
      for (float& v : x) v = random() % 2 ? 0x1p-24f : -0x1p-24f;
      break;
    case 13:
      for (float& v : x) v = random() % 2 ? -0.0f : 0.0f;
      break;
  }
  return x;
}

TEST(HeadWidePage, EncodesTheBytesOfTheScalarCodec) {
  std::mt19937 random(4);
  for (int d : kSizes)
    for (KvSide side : {KvSide::kKey, KvSide::kValue})
      for (int round = 0; round < 3; ++round) {
        AlignedBuffer exact(size_t(64) * d * 2);
        for (int t = 0; t < 64; ++t)
          store_exact_row(side, d, hard_row(t + round, d, random).data(), t, exact.data());
        for (DType type :
             {DType::tbq2_h, DType::tbq3_h, DType::tbq4_h, DType::q8_0, DType::q5_0, DType::q4_0}) {
          const size_t bytes = formats::require(type).row_bytes(d) * 64;
          std::vector<std::byte> want(bytes);
          encode_page_scalar(type, side, d, exact.data(), want.data(), nullptr);
          for (const AttentionKernels* k : kernels()) {
            std::vector<std::byte> got(bytes, std::byte(0xff));
            k->encode_page(type, side, d, exact.data(), got.data(), nullptr);
            ASSERT_EQ(want, got) << name_of(k, type, d);
          }
        }
      }
}

TEST(HeadWideRotation, HasTheBitsOfTheScalarOne) {
  for (int d : kSizes)
    for (formats::Role side : {formats::kKeys, formats::kValues})
      for (float sigma : {1.0f, 1e-30f, 1e4f}) {
        const std::vector<float> x = gaussian(size_t(d), uint32_t(d) + side, sigma);
        std::vector<float> want(x.size()), back(x.size());
        formats::rotate(side, x.data(), want.data(), d);
        formats::unrotate(side, x.data(), back.data(), d);
        const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
          return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
        };
        for (const AttentionKernels* k : kernels()) {
          std::vector<float> got(x.size()), in_place = x;
          k->rotate(side, x.data(), got.data(), d);
          EXPECT_TRUE(same(got, want)) << isa_name(k->isa) << ' ' << d;
          k->rotate(side, in_place.data(), in_place.data(), d);
          EXPECT_TRUE(same(in_place, want));
          k->unrotate(side, x.data(), got.data(), d);
          EXPECT_TRUE(same(got, back)) << isa_name(k->isa) << ' ' << d;
        }
      }
}

// Four pages of one head, keys and values of one type, with the decoded values beside them.
struct Chunk {
  DType type;
  int d;
  AlignedBuffer keys, values;
  std::vector<float> decoded_keys, decoded_values, key_scale, value_scale;
  size_t region;

  Chunk(DType t, int head_dim, uint32_t seed) : type(t), d(head_dim) {
    const auto& format = formats::require(type);
    region = format.row_bytes(d) * 64;
    keys = AlignedBuffer(region * 4);
    values = AlignedBuffer(region * 4);
    fill(KvSide::kKey, seed, keys, decoded_keys, key_scale);
    fill(KvSide::kValue, seed + 1, values, decoded_values, value_scale);
  }

  void fill(KvSide side, uint32_t seed, AlignedBuffer& pages, std::vector<float>& decoded,
            std::vector<float>& scales) {
    const auto& format = formats::require(type);
    std::vector<std::byte> wire(format.row_bytes(d));
    decoded = gaussian(size_t(256) * d, seed);
    for (int t = 0; t < 256; ++t) {
      float* row = decoded.data() + size_t(t) * d;
      for (int i = 0; i < d; ++i) row[i] *= 1 + float(t % 7);
      format.encode(row, wire.data(), d);
      format.decode(wire.data(), row, d);
      uint16_t scale;
      std::memcpy(&scale, wire.data() + wire.size() - 2, 2);
      scales.push_back(f16_to_f32(scale));
      pack_row(type, side, d, wire.data(), t % 64, pages.data() + region * size_t(t / 64));
    }
  }
};

// Query rows of which row i sees [lo[i], hi[i]), in tiles as the flash body makes them.
struct Rows {
  int n;
  std::vector<RowTile> tiles;
  int lo[kBlockRows], hi[kBlockRows];

  Rows(int count, bool ragged, Isa isa) : n(count) {
    for (int i = 0; i < n; ++i) {
      lo[i] = ragged ? 37 + i / 3 : 0;
      hi[i] = ragged ? 150 + i : 256;
    }
    const int most = isa == Isa::kAvx512 ? 8 : isa == Isa::kNeon ? 6 : 4;
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

std::vector<float> score(const AttentionKernels* k, const Chunk& chunk, const Rows& rows,
                         const std::vector<float>& q, float scale) {
  const KeyProducer& producer = *k->keys(chunk.type);
  AlignedBuffer packed(producer.query_bytes(chunk.d)), scratch(kProducerScratch);
  std::vector<float> out(size_t(kBlockRows) * kChunk, std::nanf(""));
  for (const RowTile& tile : rows.tiles) {
    const float* pointers[8];
    for (int i = 0; i < tile.n; ++i) pointers[i] = q.data() + size_t(tile.row + i) * chunk.d;
    producer.pack_query(pointers, tile, chunk.d, scale, packed.data());
  }
  for (int group = 0; group < 8; ++group) {
    const std::byte* keys = chunk.keys.data() + chunk.region * size_t(group / 2);
    ScoreTask task{};
    task.keys = keys;
    task.group = group % 2;
    task.head_dim = chunk.d;
    task.query = packed.data();
    task.tiles = rows.tiles.data();
    task.n_tiles = int(rows.tiles.size());
    task.next = group % 3 ? keys : nullptr;
    for (auto& values : task.values) values = chunk.values.data();
    task.scores = out.data() + group * kGroupKeys;
    task.scratch = scratch.data();
    producer.score(task);
  }
  return out;
}

void check_scores(const Chunk& chunk, int n_rows) {
  const std::vector<float> q = gaussian(size_t(n_rows) * chunk.d, 21);
  const float scale = 0.3f;
  std::vector<float> first;
  for (const AttentionKernels* k : kernels()) {
    const auto got = score(k, chunk, Rows(n_rows, false, k->isa), q, scale);
    for (int row = 0; row < n_rows; ++row) {
      const float* x = q.data() + size_t(row) * chunk.d;
      double top = 0, sum_q = 0;
      for (int i = 0; i < chunk.d; ++i)
        top = std::max(top, double(std::fabs(x[i]))), sum_q += std::fabs(x[i]);
      const double qs = top / 127, u = top_level(chunk.type, chunk.d) / 127;
      for (int j = 0; j < 256; ++j) {
        const float* key = chunk.decoded_keys.data() + size_t(j) * chunk.d;
        double want = 0, sum_key = 0;
        for (int i = 0; i < chunk.d; ++i) want += double(x[i]) * key[i], sum_key += std::fabs(key[i]);
        const double ks = chunk.key_scale[size_t(j)];
        const double bound = qs / 2 * sum_key + ks * (u / 2 * sum_q + chunk.d * qs * u / 4);
        ASSERT_NEAR(got[size_t(row) * kChunk + j], want * scale, bound * scale * 1.0001)
            << name_of(k, chunk.type, chunk.d) << " row " << row << " key " << j;
      }
    }
    const size_t bytes = sizeof(float) * kChunk * size_t(n_rows);
    if (first.empty()) first = got;
    EXPECT_EQ(0, std::memcmp(first.data(), got.data(), bytes)) << name_of(k, chunk.type, chunk.d);
  }
}

TEST(HeadWideKeys, ScoresWithinTheBoundAndTheSameOnEveryIsa) {
  for (DType type : kHeadWide)
    for (int d : kSizes) {
      const Chunk chunk(type, d, 5);
      for (int n_rows : {1, 2, 3, 5, 8, 13}) check_scores(chunk, n_rows);
    }
}

struct Mixed {
  std::vector<float> weights = std::vector<float>(size_t(kBlockRows) * kChunk, std::nanf(""));
  std::vector<float> before;
  float keep[kBlockRows], blend[kBlockRows];

  // Weights of which most are small; NaN where a row sees nothing.
  Mixed(const Rows& rows, int d) : before(gaussian(size_t(kBlockRows) * d, 33)) {
    std::mt19937 random(6);
    std::uniform_real_distribution<float> uniform(-12, 0);
    for (int row = 0; row < rows.n; ++row) {
      for (int j = rows.lo[row]; j < rows.hi[row]; ++j)
        weights[size_t(row) * kChunk + j] = std::exp2(uniform(random));
      weights[size_t(row) * kChunk + (rows.lo[row] + rows.hi[row]) / 2] = row % 5 ? 1.0f : 1e-4f;
      keep[row] = 0.1f * float(row % 9);
      blend[row] = row % 3 ? 0.5f : 1.0f;  // exact, so that fused and separate multiply-adds agree
    }
  }
};

std::vector<float> mix(const AttentionKernels* k, const Chunk& chunk, const Rows& rows, const Mixed& in) {
  AlignedBuffer scratch(kProducerScratch);
  std::memset(scratch.data(), 0xff, scratch.size());
  std::vector<float> out = in.before;
  MixTask task{};
  const int begin = rows.lo[0], end = rows.hi[rows.n - 1];
  for (int column = begin; column < end;) {
    const int stop = std::min(end, (column / 64 + 1) * 64);
    task.pieces[task.n_pieces++] = {chunk.values.data() + chunk.region * size_t(column / 64), column % 64,
                                    stop - column, column};
    column = stop;
  }
  task.head_dim = chunk.d;
  task.tiles = rows.tiles.data();
  task.n_tiles = int(rows.tiles.size());
  task.lo = rows.lo;
  task.hi = rows.hi;
  task.weights = in.weights.data();
  task.keep = in.keep;
  task.blend = in.blend;
  task.next_keys = rows.n % 2 ? chunk.keys.data() : nullptr;
  task.out = out.data();
  task.scratch = scratch.data();
  k->values(chunk.type)->mix(task);
  return out;
}

void check_mix(const Chunk& chunk, int n_rows, bool ragged) {
  std::vector<float> first;
  for (const AttentionKernels* k : kernels()) {
    const Rows rows(n_rows, ragged, k->isa);
    const Mixed in(rows, chunk.d);
    const auto got = mix(k, chunk, rows, in);
    const double u = top_level(chunk.type, chunk.d) / 127;
    for (int row = 0; row < n_rows; ++row) {
      const float* p = in.weights.data() + size_t(row) * kChunk;
      double m[2] = {0, 0};  // of each 128 keys
      for (int j = rows.lo[row]; j < rows.hi[row]; ++j)
        m[j / 128] = std::max(m[j / 128], double(p[j]) * chunk.value_scale[size_t(j)]);
      for (int i = 0; i < chunk.d; ++i) {
        const size_t at = size_t(row) * chunk.d + i;
        double want = 0, bound = 1e-6 * std::fabs(in.before[at]);
        for (int j = rows.lo[row]; j < rows.hi[row]; ++j) {
          const double scale = chunk.value_scale[size_t(j)],
                       v = chunk.decoded_values[size_t(j) * chunk.d + i];
          want += p[j] * v;
          bound +=
              m[j / 128] / 508 * (std::fabs(v) / scale + u / 2) + p[j] * scale * u / 2 + 1e-6 * p[j] * std::fabs(v);
        }
        ASSERT_NEAR(got[at], in.before[at] * in.keep[row] + want * in.blend[row], bound)
            << name_of(k, chunk.type, chunk.d) << " row " << row << " dimension " << i;
      }
    }
    const size_t bytes = sizeof(float) * size_t(n_rows) * chunk.d;
    if (first.empty()) first = got;
    EXPECT_EQ(0, std::memcmp(first.data(), got.data(), bytes)) << name_of(k, chunk.type, chunk.d);
  }
}

TEST(HeadWideValues, MixWithinTheBoundAndTheSameOnEveryIsa) {
  for (DType type : kHeadWide)
    for (int d : kSizes) {
      const Chunk chunk(type, d, 7);
      for (int n_rows : {1, 2, 3, 4, 5, 8, 13}) {
        check_mix(chunk, n_rows, false);
        check_mix(chunk, n_rows, true);
      }
    }
}

// Largest error of a row against its spread, both as lengths (the rotation keeps them).
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

// A score is off by noise of standard deviation scale |k| |q| sqrt(r_q^2 + r_l^2) / sqrt(d), where r_q = 3.6
// / 127 / sqrt(12) and r_l = 2.8 / 127 / sqrt(12) are the relative errors of 8 bits on Gaussian values; with
// scale 1 / sqrt(d), 0.011. An output moves by the spread times that, and by the levels' rounding, 0.007 of
// it; four deviations.
constexpr double kFlashTolerance = 4 * (0.011 + 0.007);

void check_flash(const Shape& s, int n_keys, int first, int count) {
  for (const AttentionInfo& info : attention_variants()) {
    if (info.k != s.k || info.v != s.v || !info.flash) continue;
    Cache cache(s, n_keys, 3, info.isa);
    if (s.window) cache.evict_before(first - s.window + 1);
    const Queries queries(s, first, count);
    std::vector<double> spread;
    const auto want = reference(cache, queries, &spread);
    const auto got = attend(info.variant, cache, queries, count, 2);
    EXPECT_LT(worst_row(got, want, spread, s.head_dim), kFlashTolerance)
        << attention_name(*info.variant) << ' ' << s.n_head << '/' << s.n_kv << " window " << s.window;
  }
}

Shape shape(DType k, DType v, int n_head, int n_kv, int d, int window = 0) {
  return {k, v, n_head, n_kv, d, window, 1.0f / std::sqrt(float(d))};
}

TEST(HeadWideFlash, EveryPairMatchesDoublePrecision) {
  for (DType k : kHeadWide)
    for (DType v : kHeadWide) check_flash(shape(k, v, 4, 2, 128), 333, 330, 3);
  for (DType other : {DType::f16, DType::q8_0}) {
    check_flash(shape(DType::tbq4_h, other, 4, 1, 128), 333, 326, 7);
    check_flash(shape(other, DType::tbq4_h, 4, 1, 128), 333, 326, 7);
  }
}

TEST(HeadWideFlash, EveryHeadSize) {
  for (DType type : kHeadWide)
    for (int d : kSizes) {
      check_flash(shape(type, type, 8, 1, d), 700, 697, 3);
      check_flash(shape(type, type, 2, 2, d), 300, 180, 13);
    }
}

TEST(HeadWideFlash, GroupsWindowsAndOddRows) {
  for (auto [n_head, n_kv] : {std::pair{2, 2}, {4, 2}, {4, 1}, {8, 1}, {3, 1}})
    check_flash(shape(DType::tbq4_h, DType::tbq3_h, n_head, n_kv, 64), 290, 279, 11);
  for (int window : {100, 256})
    check_flash(shape(DType::tbq3_h, DType::tbq4_h, 4, 1, 64, window), 600, 560, 37);
}

TEST(HeadWideFlash, SameBitsForAnyBatchAndThreads) {
  for (auto [k, v] : {std::pair{DType::tbq4_h, DType::tbq4_h}, {DType::tbq3_h, DType::tbq2_h}})
    for (const AttentionInfo& info : attention_variants()) {
      if (info.k != k || info.v != v || !info.flash) continue;
      const Shape s = shape(k, v, 8, 2, 64, k == DType::tbq3_h ? 200 : 0);
      const Cache cache(s, 900);
      const Queries queries(s, 780, 120);
      const auto want = attend(info.variant, cache, queries, 1, 1);
      for (auto [batch, threads] : {std::pair{120, 1}, {120, 3}, {3, 2}, {64, 2}}) {
        const auto got = attend(info.variant, cache, queries, batch, threads);
        EXPECT_EQ(0, std::memcmp(got.data(), want.data(), got.size() * sizeof(float)))
            << attention_name(*info.variant) << " batch " << batch;
      }
    }
}

}  // namespace
}  // namespace kvasir::cpu::test
