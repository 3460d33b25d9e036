// CUDA cache writes against the scalar codec's bytes, and attention against a double reference over what the
// cache holds.
#include "cuda/fixture.h"
#ifdef KVASIR_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "base/half.h"
#include "formats/basis.h"
#include "formats/tcq_table.h"
#include "graph/kv_layout.h"

namespace kvasir::test {
namespace {

using graph::kPageTokens;
using graph::Row;

struct Shape {
  DType k, v;
  int head_dim, n_head, n_kv, window;
  bool flash;
  float softcap = 0;
  bool given_table = false;  // of tbq3_tcq
  float key_gain = 1;        // of stored keys, where nothing is compared
  int tokens = 512;
  bool fused = false;  // heads and attention of a row as one launch
  bool peaks = false;  // values that no f16 holds when they are decoded
  bool twice = false;  // a second layer reads the same cache
  // f16 tiles: queries, probabilities and values each within 2^-11. Floats: two bf16 terms.
  double bound() const {
    const bool terms = k == v && (k == DType::bf16 || k == DType::f32);
    return !flash ? 1e-9 : terms ? 1e-8 : 2e-6;
  }
};
std::string shape_name(const Shape& s) {
  return fmt::format("{}_{}_d{}_h{}k{}_w{}_{}{}", formats::require(s.k).name, formats::require(s.v).name,
                     s.head_dim, s.n_head, s.n_kv, s.window, s.flash ? "flash" : "plain",
                     s.fused         ? "_fused"
                     : s.softcap > 0 ? "_cap"
                     : s.given_table ? "_given_table"
                                     : "");
}

std::shared_ptr<const formats::TcqTable> given_table() {
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0, 0.09f);
  std::vector<float> levels;
  for (int i = 0; i < formats::kTcqStates; ++i) levels.push_back(normal(random));
  return formats::make_tcq_table(levels, "test");
}

// One cache, one attention op, rows that are looked up.
class Bed {
 public:
  explicit Bed(const Shape& shape) : shape_(shape), backend_(backends::create_backend("cuda", 1)) {
    const int d = shape.head_dim;
    q_in_ = small_.input("q_raw", DType::f32, shape.n_head * d, shape.tokens, 1);
    k_ = small_.input("k", DType::f32, shape.n_kv * d, shape.tokens, 2, shape.key_gain);
    v_ = small_.input("v", DType::f32, shape.n_kv * d, shape.tokens, 3, 1.5f);
    if (shape.peaks) add_peaks(*small_.tables.back());
    small_.graph.ropes.push_back({10000.0f, 1, d, {}});
    graph::Op rope;
    rope.kind = graph::OpKind::rope;
    rope.in[0] = q_in_;
    rope.out = small_.value("q", shape.n_head * d);
    rope.n_head = shape.n_head;
    rope.head_dim = d;
    rope.rope = 0;
    rope.eps = 1e-6f;
    small_.graph.ops.push_back(rope);
    graph::Op append;
    append.kind = graph::OpKind::kv_append;
    append.in = {k_, v_, graph::kNone};
    append.kv = 0;
    append.layer = 0;
    small_.graph.ops.push_back(append);
    graph::Op attend;
    attend.kind = graph::OpKind::attention;
    attend.in[0] = rope.out;
    attend.out = out_ = small_.value("out", shape.n_head * d);
    attend.n_head = shape.n_head;
    attend.head_dim = d;
    attend.scale = scale_ = 1.0f / std::sqrt(float(d));
    attend.softcap = shape.softcap;
    attend.kv = 0;
    attend.layer = 0;
    small_.graph.ops.push_back(attend);
    if (shape.twice) {
      attend.layer = 1;
      attend.out = second_ = small_.value("second", shape.n_head * d);
      small_.graph.ops.push_back(attend);
    }
    graph::KvSpec spec;
    spec.layer = 0;
    spec.head_dim = d;
    spec.n_kv = shape.n_kv;
    spec.window = shape.window;
    spec.k_type = shape.k;
    spec.v_type = shape.v;
    if (shape.given_table) spec.tcq = tcq_ = given_table();
    small_.graph.kv.push_back(spec);
    backend_->upload(small_.graph, nullptr, nullptr);
    n_pages_ = shape.tokens / kPageTokens;
    kv_.n_pages = {n_pages_ + 1};
    kv_.data = {backend_->alloc(graph::kv_page_bytes(spec) * size_t(n_pages_ + 1))};
    kv_.n_exact = {2};
    kv_.exact = {graph::kv_exact_page_bytes(spec) ? backend_->alloc(graph::kv_exact_page_bytes(spec) * 2)
                                                  : nullptr};
    // What nobody wrote must never be read: poison it.
    cudaMemset(kv_.data[0], 0xff, graph::kv_page_bytes(spec) * size_t(n_pages_ + 1));
    if (kv_.exact[0]) cudaMemset(kv_.exact[0], 0xff, graph::kv_exact_page_bytes(spec) * 2);
    cudaDeviceSynchronize();
    backends::Decisions decisions;
    decisions.keep_values = !shape.fused;
    decisions.flash = shape.flash ? backends::FlashAttention::kOn : backends::FlashAttention::kOff;
    executable_ = backend_->compile(small_.graph, decisions, kv_, shape.tokens);
    for (int p = 0; p < n_pages_; ++p) pages_.push_back((p * 2 + 1) % (n_pages_ + 1));
  }
  ~Bed() {
    executable_.reset();
    backend_->free(kv_.data[0]);
    if (kv_.exact[0]) backend_->free(kv_.exact[0]);
  }

  // 65504 in f16; 127 times q8_0's scale of it is 65532.
  static void add_peaks(Table& table) {
    for (size_t i = 0; i < table.values.size(); i += 97) {
      table.values[i] = 65504 / 1.5f;
      std::memcpy(table.bytes.data() + i * sizeof(float), &table.values[i], sizeof(float));
    }
  }

  // Stores positions [begin, end) (token = position) and attends from them.
  std::vector<float> step(int begin, int end) {
    std::vector<Row> rows;
    for (int p = begin; p < end; ++p) rows.push_back({p, p, 0, 0});
    // Pages the step writes are exact: the last one stays, others live for the step.
    std::vector<int32_t> exact(size_t(n_pages_), -1);
    int next = 2;
    const int first = begin / kPageTokens, last = (end - 1) / kPageTokens;
    for (int p = first; p <= last; ++p) {
      const bool open = p == first && begin % kPageTokens != 0;
      if (!open && p == last) open_slot_ = 1 - open_slot_;
      exact[size_t(p)] = open || p == last ? open_slot_ : next++;
    }
    graph::SequenceView sequence;
    const size_t cls = shape_.window > 0;
    sequence.page_table[cls] = pages_;
    sequence.exact_table[cls] = exact;
    executable_->submit({rows, {&sequence, 1}});
    const auto out = executable_->inspect(out_);
    return {out.begin(), out.end()};
  }

  // What the second layer made of the step before.
  std::vector<float> second() {
    const auto out = executable_->inspect(second_);
    return {out.begin(), out.end()};
  }
  backends::Counters counters() const { return executable_->counters(); }

  // Row of a table, as the op before gave it.
  std::span<const float> table(int index, int token) const {
    const Table& t = *small_.tables[size_t(index)];
    return std::span<const float>(t.values).subspan(size_t(token) * size_t(t.weight.n_in),
                                                    size_t(t.weight.n_in));
  }

  // What position j of a head is to a query of page `query_page`, in the model's basis.
  std::vector<double> stored(int side, int head, int j, int query_page) const {
    const int d = shape_.head_dim;
    const DType type = side ? shape_.v : shape_.k;
    const formats::Format& format = formats::require(type);
    std::vector<float> x(static_cast<size_t>(d));
    const auto from = table(1 + side, j).subspan(size_t(head) * size_t(d), size_t(d));
    for (int i = 0; i < d; ++i) x[size_t(i)] = from[size_t(i)] * (side ? 1.5f : 1.0f);
    const formats::Role role = side ? formats::kValues : formats::kKeys;
    if (format.open_page()) {
      formats::to_basis(format.basis, role, x.data(), x.data(), d);
      for (float& v : x) v = f16_to_f32(f32_to_f16(v));
      if (j / kPageTokens != query_page) {
        std::vector<std::byte> wire(format.row_bytes(d));
        format.encode_row(tcq_.get(), x.data(), wire.data(), d);
        format.decode_row(tcq_.get(), wire.data(), x.data(), d);
      }
      formats::from_basis(format.basis, role, x.data(), x.data(), d);
    } else {
      std::vector<std::byte> wire(format.row_bytes(d));
      format.encode(x.data(), wire.data(), d);
      format.decode(wire.data(), x.data(), d);
    }
    return {x.begin(), x.end()};
  }

  std::vector<double> expected(int pos) const {
    const int d = shape_.head_dim, group = shape_.n_head / shape_.n_kv;
    std::vector<double> out;
    const int first = shape_.window > 0 ? std::max(0, pos - shape_.window + 1) : 0;
    std::vector<std::vector<double>> keys, values;
    for (int h = 0; h < shape_.n_head; ++h) {
      const auto raw = table(0, pos).subspan(size_t(h) * size_t(d), size_t(d));
      std::vector<double> q(raw.begin(), raw.end());
      double square = 0;
      for (double v : q) square += v * v;
      for (double& v : q) v /= std::sqrt(square / d + 1e-6);
      for (int i = 0; i < d / 2; ++i) {
        const double angle = pos * std::pow(10000.0, -2.0 * i / d), a = q[size_t(i)],
                     b = q[size_t(i + d / 2)];
        q[size_t(i)] = a * std::cos(angle) - b * std::sin(angle);
        q[size_t(i + d / 2)] = b * std::cos(angle) + a * std::sin(angle);
      }
      if (h % group == 0) {
        keys.clear();
        values.clear();
        for (int j = first; j <= pos; ++j) {
          keys.push_back(stored(0, h / group, j, pos / kPageTokens));
          values.push_back(stored(1, h / group, j, pos / kPageTokens));
        }
      }
      std::vector<double> p;
      double most = -INFINITY, sum = 0;
      for (const auto& k : keys) {
        double s = 0;
        for (int i = 0; i < d; ++i) s += q[size_t(i)] * k[size_t(i)];
        s *= double(scale_);
        if (shape_.softcap > 0) s = double(shape_.softcap) * std::tanh(s / double(shape_.softcap));
        p.push_back(s);
        most = std::max(most, s);
      }
      for (double& s : p) sum += s = std::exp(s - most);
      std::vector<double> o(size_t(d), 0.0);
      for (size_t j = 0; j < p.size(); ++j)
        for (int i = 0; i < d; ++i) o[size_t(i)] += p[j] / sum * values[j][size_t(i)];
      out.insert(out.end(), o.begin(), o.end());
    }
    return out;
  }

  // What the scalar codec makes of position j, given as f16 in the type's basis.
  std::vector<std::byte> wire_row(int side, int head, int j) const {
    const size_t d = size_t(shape_.head_dim);
    const formats::Format& format = formats::require(side ? shape_.v : shape_.k);
    std::vector<float> x;
    for (float v : table(1 + side, j).subspan(size_t(head) * d, d)) x.push_back(v * (side ? 1.5f : 1.0f));
    formats::to_basis(format.basis, side ? formats::kValues : formats::kKeys, x.data(), x.data(), int64_t(d));
    for (float& v : x) v = f16_to_f32(f32_to_f16(v));
    std::vector<std::byte> wire(format.row_bytes(int64_t(d)));
    format.encode_row(tcq_.get(), x.data(), wire.data(), int64_t(d));
    return wire;
  }

  // The 64 rows of one head of a page, in wire form.
  std::vector<std::byte> rows(int side, int head, int logical) const {
    const graph::KvSpec& spec = small_.graph.kv[0];
    std::vector<std::byte> out(formats::require(side ? spec.v_type : spec.k_type).row_bytes(spec.head_dim) *
                               kPageTokens);
    backend_->read_page(spec, side ? backends::PagePart::kValues : backends::PagePart::kKeys, head,
                        page(logical), out.data());
    return out;
  }
  void write_rows(int side, int head, int logical, const std::vector<std::byte>& wire) {
    backend_->write_page(small_.graph.kv[0], side ? backends::PagePart::kValues : backends::PagePart::kKeys,
                         head, page(logical), wire.data());
  }
  void poison_page(int logical) {
    cudaMemset(page(logical), 0xff, graph::kv_page_bytes(small_.graph.kv[0]));
    cudaDeviceSynchronize();  // the backend's stream does not wait for this one
  }

 private:
  std::byte* page(int logical) const {
    return kv_.data[0] + size_t(pages_[size_t(logical)]) * graph::kv_page_bytes(small_.graph.kv[0]);
  }

  Shape shape_;
  std::unique_ptr<backends::Backend> backend_;
  SmallGraph small_;
  graph::ValueId q_in_, k_, v_, out_, second_ = graph::kNone;
  float scale_ = 1;
  int n_pages_ = 0, open_slot_ = 0;
  backends::KvBuffers kv_;
  std::vector<int32_t> pages_;
  std::shared_ptr<const formats::TcqTable> tcq_;
  std::unique_ptr<backends::Executable> executable_;
};

class CudaAttention : public testing::TestWithParam<Shape> {};

TEST_P(CudaAttention, PromptAndDecodeAgreeWithDouble) {
  KVASIR_NEEDS_CUDA();
  const Shape shape = GetParam();
  Bed bed(shape);
  const auto compare = [&](int begin, int end) {
    const std::vector<float> got = bed.step(begin, end);
    const size_t width = size_t(shape.n_head) * size_t(shape.head_dim);
    double worst = 0;
    for (int p = begin; p < end; p += p + 1 < end && (p - begin) % 7 ? std::min(9, end - 1 - p) : 1)
      worst =
          std::max(worst, nmse(std::span(got).subspan(size_t(p - begin) * width, width), bed.expected(p)));
    EXPECT_LE(worst, shape.bound()) << begin << " to " << end;
  };
  compare(0, 150);  // three pages at once, one part full
  compare(150, 151);
  compare(151, 152);
  for (int p = 152; p < 191; ++p) bed.step(p, p + 1);
  compare(191, 192);  // fills the page
  compare(192, 193);  // reads it encoded
  compare(193, 203);  // few rows of one sequence
  compare(203, 450);
  compare(450, 451);
}

// Prompts that begin a page: pages are encoded with the heads, and made tiles there.
TEST(CudaAttentionPages, EncodedWithTheHeads) {
  KVASIR_NEEDS_CUDA();
  using enum DType;
  const auto compare = [](Bed& bed, const Shape& shape, int begin, int end) {
    const std::vector<float> got = bed.step(begin, end);
    const size_t width = size_t(shape.n_head) * size_t(shape.head_dim);
    for (int p : {begin, begin + 63, begin + 64, begin + 100, end - 1})
      EXPECT_LE(nmse(std::span(got).subspan(size_t(p - begin) * width, width), bed.expected(p)), 2e-6)
          << shape_name(shape) << (shape.peaks ? " with peaks" : "") << " at " << p;
  };
  for (int d : {256, 512})
    for (int window : {0, 100, 300})
      for (DType type : {q8_0, q5_0, q4_0, tbq4_0, tbq4_h, tbq3_h, tbq3_ht, tbq3_tcq, q4_polar}) {
        Shape shape{type, type == q4_0 ? tbq2_ht : type, d, 4, 2, window, true};
        shape.peaks = type == q8_0;
        Bed bed(shape);
        compare(bed, shape, 0, 192);
        compare(bed, shape, 192, 500);
        EXPECT_EQ(bed.counters().early_tiles, 2u) << shape_name(shape);
        EXPECT_EQ(bed.counters().repeats, shape.peaks ? 2u : 0u) << shape_name(shape);
      }
}

// The second of two layers that read a cache finds it as the first did.
TEST(CudaAttentionPages, OfACacheThatTwoLayersRead) {
  KVASIR_NEEDS_CUDA();
  using enum DType;
  for (int d : {256, 512})
    for (int window : {0, 100})
      for (DType type : {q8_0, tbq4_h, tbq3_ht, f16, bf16, f32}) {
        Shape shape{type, type, d, 4, 2, window, true};
        shape.twice = true;
        Bed bed(shape);
        const auto [begin_of, end_of] =
            std::pair{std::vector{0, 192, 500, 501}, std::vector{192, 500, 501, 512}};
        for (size_t i = 0; i < begin_of.size(); ++i) {
          const std::vector<float> first = bed.step(begin_of[i], end_of[i]), second = bed.second();
          ASSERT_EQ(first.size(), second.size());
          EXPECT_EQ(0, std::memcmp(first.data(), second.data(), first.size() * sizeof(float)))
              << shape_name(shape) << " from " << begin_of[i];
          const size_t width = size_t(shape.n_head) * size_t(d);
          const int last = end_of[i] - 1;
          EXPECT_LE(
              nmse(std::span(first).subspan(size_t(last - begin_of[i]) * width, width), bed.expected(last)),
              shape.bound())
              << shape_name(shape) << " at " << last;
        }
      }
}

TEST(CudaAttentionFewRows, WindowsOf1024) {
  KVASIR_NEEDS_CUDA();
  using enum DType;
  for (DType type : {f16, bf16, f32, q8_0, tbq4_h, tbq3_ht, q4_0})
    for (bool fused : {false, true}) {
      Shape shape{type, type, 256, 8, 4, 1024, true};
      shape.tokens = 1152;
      shape.fused = fused;
      Bed bed(shape);
      bed.step(0, 1085);
      for (int p = 1085; p < 1090; ++p)
        EXPECT_LE(nmse(bed.step(p, p + 1), bed.expected(p)), shape.bound())
            << shape_name(shape) << " at " << p;
    }
}

// Types that encode whole pages and hold both sides.
std::vector<DType> coded_types() {
  using enum DType;
  return {q8_0,   q5_0,   q4_0,   tbq3_0,  tbq4_0,  q4_polar, tbq3_tcq,
          tbq2_h, tbq3_h, tbq4_h, tbq2_ht, tbq3_ht, tbq4_ht};
}

std::vector<Shape> shapes() {
  std::vector<Shape> out;
  using enum DType;
  std::vector<DType> types = coded_types();
  types.push_back(f16);
  for (bool flash : {true, false}) {
    for (DType type : types)
      for (int d : {64, 128, 256, 512}) {
        if ((!flash && d != 256) || !formats::require(type).takes(d)) continue;
        out.push_back({type, type, d, 8, 1, 0, flash});
        if (d >= 256) out.push_back({type, type, d, 8, 2, 100, flash});
      }
    for (int d : {128, 256, 512}) {
      out.push_back({qjl1_256, f16, d, 8, 1, 0, flash});
      out.push_back({qjl1_256, d == 256 ? tbq3_0 : q4_polar, d, 4, 2, 100, flash});
    }
    // Each type beside another one, keys and values.
    for (size_t i = 0; i < types.size(); ++i)
      out.push_back({types[i], types[(i + 5) % types.size()], 256, 4, 2, i % 2 ? 130 : 0, flash});
    out.push_back({q8_0, tbq4_h, 512, 16, 1, 0, flash});
    out.push_back({f16, f16, 256, 4, 4, 0, flash, 5.0f});
    out.push_back({tbq4_ht, q4_0, 256, 4, 4, 0, flash, 5.0f});
    out.push_back({tbq3_tcq, tbq3_tcq, 256, 4, 1, 0, flash, 0, true});
  }
  for (DType type : types)
    for (int d : {64, 128, 256, 512})
      if (formats::require(type).takes(d)) {
        Shape fused{type, type, d, 8, d == 64 ? 4 : 1, d == 128 ? 0 : 100, true};
        fused.fused = true;
        out.push_back(fused);
      }
  for (int d : {256, 512})
    for (bool fused : {false, true}) {
      Shape shape{bf16, bf16, d, 8, 1, d == 256 ? 100 : 0, true};
      shape.fused = fused;
      out.push_back(shape);
      shape.k = shape.v = f32;
      out.push_back(shape);
    }
  out.push_back({f32, f32, 256, 4, 1, 0, false});
  out.push_back({bf16, bf16, 256, 4, 1, 100, false});
  out.push_back({f32, tbq4_h, 128, 4, 1, 0, false});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttention, testing::ValuesIn(shapes()),
                         [](const auto& info) { return shape_name(info.param); });

class CudaAppend : public testing::TestWithParam<DType> {};

TEST_P(CudaAppend, PageBytesAreTheScalarCodecs) {
  KVASIR_NEEDS_CUDA();
  const formats::Format& format = formats::require(GetParam());
  const DType values = format.has_role(formats::kValues) ? GetParam() : DType::q4_0;
  for (int d : {64, 128, 256, 512})
    for (bool at_once : {true, false}) {
      if (!format.takes(d)) continue;
      Bed bed({GetParam(), values, d, 2, 2, 0, true});
      if (at_once)
        bed.step(0, 128);
      else
        for (int p = 0; p < 128; ++p) bed.step(p, p + 1);
      for (int logical = 0; logical < 2; ++logical)
        for (int head = 0; head < 2; ++head)
          for (int side = 0; side < 2; ++side) {
            const std::vector<std::byte> rows = bed.rows(side, head, logical);
            int wrong = 0;
            for (int t = 0; t < kPageTokens; ++t) {
              const auto expected = bed.wire_row(side, head, logical * kPageTokens + t);
              wrong += std::memcmp(rows.data() + size_t(t) * expected.size(), expected.data(),
                                   expected.size()) != 0;
            }
            EXPECT_EQ(wrong, 0) << format.name << " head size " << d << " page " << logical << " side "
                                << side << (at_once ? " at once" : " by token");
          }
    }
}

TEST_P(CudaAppend, PagesComeBackAsTheyWereWritten) {
  KVASIR_NEEDS_CUDA();
  const formats::Format& format = formats::require(GetParam());
  const DType values = format.has_role(formats::kValues) ? GetParam() : DType::q4_0;
  Bed bed({GetParam(), values, 256, 2, 2, 0, true});
  bed.step(0, 100);
  std::vector<std::byte> rows[2][2];
  for (int head = 0; head < 2; ++head)
    for (int side = 0; side < 2; ++side) rows[head][side] = bed.rows(side, head, 0);
  const std::vector<float> first = bed.step(100, 101);
  bed.poison_page(0);
  for (int head = 0; head < 2; ++head)
    for (int side = 0; side < 2; ++side) bed.write_rows(side, head, 0, rows[head][side]);
  const std::vector<float> again = bed.step(100, 101);
  EXPECT_EQ(0, std::memcmp(first.data(), again.data(), first.size() * sizeof(float)));
}

std::vector<DType> key_types() {
  std::vector<DType> out = coded_types();
  out.push_back(DType::qjl1_256);
  return out;
}
INSTANTIATE_TEST_SUITE_P(Types, CudaAppend, testing::ValuesIn(key_types()),
                         [](const auto& info) { return std::string(formats::require(info.param).name); });

TEST(CudaRefuses, HeadsThatABlockOf128DoesNotFit) {
  KVASIR_NEEDS_CUDA();
  for (DType type : {DType::qjl1_256, DType::q4_polar, DType::tbq3_tcq}) {
    const std::string name(formats::require(type).name);
    try {
      Bed bed({type, DType::f16, 64, 2, 1, 0, true});
      FAIL() << name << " was taken at head size 64";
    } catch (const std::exception& error) {
      for (const std::string& part :
           {name + " at head size 64", std::string("required"), std::string("supported")})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(CudaRefuses, KeysWhoseScaleF16CannotSay) {
  KVASIR_NEEDS_CUDA();
  // Values of a deviation of 8000: f16 holds them, and scales of their size; not the norm of 128 of them.
  const auto store = [](DType type, int n) -> std::string {
    Shape shape{type, DType::f16, 128, 2, 1, 0, true};
    shape.key_gain = 8000;
    Bed bed(shape);
    try {
      bed.step(0, n);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(store(DType::tbq4_0, 1), "");
  EXPECT_EQ(store(DType::tbq4_h, 64), "");
  EXPECT_NE(store(DType::q4_polar, 1).find("layer 0: the key or value of token 0"), std::string::npos);
  // A search knows its scale when it has ended: when the page is full.
  EXPECT_EQ(store(DType::tbq3_tcq, 63), "");
  EXPECT_NE(store(DType::tbq3_tcq, 64).find("layer 0: the key or value of token"), std::string::npos);
}

TEST(CudaAttentionRepeats, TwentyTimesTheSameBits) {
  KVASIR_NEEDS_CUDA();
  std::vector<float> first;
  for (int i = 0; i < 20; ++i) {
    Bed bed({DType::tbq4_h, DType::tbq3_h, 512, 8, 1, 0, true});
    std::vector<float> out = bed.step(0, 300);
    const std::vector<float> next = bed.step(300, 301);
    out.insert(out.end(), next.begin(), next.end());
    if (i == 0)
      first = out;
    else
      ASSERT_EQ(0, std::memcmp(first.data(), out.data(), out.size() * sizeof(float))) << "repeat " << i;
  }
}

}  // namespace
}  // namespace kvasir::test
#else
TEST(CudaAttention, NeedsABuildWithCuda) { GTEST_SKIP() << kvasir::test::no_cuda(); }
#endif
