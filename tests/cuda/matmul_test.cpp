// CUDA matmul and lookups of every weight type against double sums over the scalar codec's values.
#include <algorithm>

#include "cuda/fixture.h"
#ifdef KVASIR_HAVE_CUDA
#include "backends/cuda/kernels/gemm/gemm.h"
#include "backends/cuda/kernels/matvec/matvec.h"
#include "backends/cuda/kernels/weights/weights.h"
#include "backends/cuda/runtime/device.h"
#endif

namespace kvasir::test {
namespace {

using graph::OpKind;
using graph::Row;

class CudaMatmul : public testing::TestWithParam<DType> {};

TEST_P(CudaMatmul, RowsAgreeWithDoubleSums) {
  KVASIR_NEEDS_CUDA();
  const DType type = GetParam();
  constexpr int kIn = 768, kOut = 130, kTokens = 64;
  SmallGraph small;
  const graph::ValueId x = small.input("x", DType::f32, kIn, kTokens, 1);
  graph::Op op;
  op.kind = OpKind::matmul;
  op.in[0] = x;
  op.w[0] = small.add(make_table("w", type, kIn, kOut, 2, 0.05f));
  op.out = small.value("y", kOut);
  small.graph.ops.push_back(op);
  graph::Op gated = op;
  gated.kind = OpKind::gated_mlp;
  gated.act = graph::Activation::kGeluTanh;
  gated.w[1] = small.add(make_table("w2", type, kIn, kOut, 3, 0.05f));
  gated.out = small.value("g", kOut);
  small.graph.ops.push_back(gated);
  const auto backend = backends::create_backend("cuda", 1);
  backend->upload(small.graph, nullptr, nullptr);
  backends::Decisions decisions;
  decisions.keep_values = true;
  const auto executable = backend->compile(small.graph, decisions, {}, 64);
  graph::SequenceView sequence;
  const bool int8 = formats::require(type).block > 1;
  for (int n : {1, 2, 4, 7, 16, 17, 64}) {
    for (int repeat = 0; repeat < 3; ++repeat) {  // as it is, captured, replayed
      std::vector<Row> rows;
      for (int i = 0; i < n; ++i) rows.push_back({(i * 7 + repeat) % kTokens, i, 0, 0});
      executable->submit({rows, {&sequence, 1}});
      std::vector<double> y, g;
      for (const Row& row : rows)
        for (int o = 0; o < kOut; ++o) {
          double a = 0, b = 0;
          for (int i = 0; i < kIn; ++i) {
            const double v = double(small.tables[0]->values[size_t(row.token) * kIn + size_t(i)]);
            a += v * double(small.tables[1]->values[size_t(o) * kIn + size_t(i)]);
            b += v * double(small.tables[2]->values[size_t(o) * kIn + size_t(i)]);
          }
          y.push_back(a);
          g.push_back(a / (1 + std::exp(-2 * 0.7978845608 * (a + 0.044715 * a * a * a))) * b);
        }
      // int8 groups of the activations: (1/127)^2 / 12 of the largest squared, about 2e-5; f16 products:
      // 2^-22.
      const double bound = n > 16 ? 2e-7 : int8 ? 5e-5 : 1e-10;
      EXPECT_LE(nmse(executable->inspect(op.out), y), bound) << n << " rows";
      EXPECT_LE(nmse(executable->inspect(gated.out), g), 4 * bound) << n << " rows, gated";
    }
  }
}

// One row through sizes that models have: rows of a matrix among few and many blocks, rows that one warp
// takes and rows that many share, more chunks than a block holds at a time.
TEST_P(CudaMatmul, OneRowOfEverySize) {
  KVASIR_NEEDS_CUDA();
  const DType type = GetParam();
  if (formats::require(type).block == 1) GTEST_SKIP() << "not an int8 form";
  struct Size {
    int n_in, n_out;
    bool gated;
  };
  for (const Size& size :
       {Size{1536, 256, false}, Size{256, 1536, false}, Size{1536, 6144, true}, Size{6144, 300, false},
        Size{12288, 264, false}, Size{5376, 1000, false}, Size{21504, 140, false}, Size{2048, 40000, false},
        Size{768, 7, false}, Size{512, 17000, true}}) {
    SmallGraph small;
    const graph::ValueId x = small.input("x", DType::f32, size.n_in, 2, 1);
    graph::Op op;
    op.kind = size.gated ? OpKind::gated_mlp : OpKind::matmul;
    op.act = size.gated ? graph::Activation::kGeluTanh : graph::Activation::kNone;
    op.in[0] = x;
    op.w[0] = small.add(make_table("w", type, size.n_in, size.n_out, 2, 0.05f));
    if (size.gated) op.w[1] = small.add(make_table("w2", type, size.n_in, size.n_out, 3, 0.05f));
    op.out = small.value("y", size.n_out);
    small.graph.ops.push_back(op);
    const auto backend = backends::create_backend("cuda", 1);
    backend->upload(small.graph, nullptr, nullptr);
    backends::Decisions decisions;
    decisions.keep_values = true;
    const auto executable = backend->compile(small.graph, decisions, {}, 1);
    std::vector<double> y;
    for (int o = 0; o < size.n_out; ++o) {
      double a = 0, b = 0;
      for (int i = 0; i < size.n_in; ++i) {
        const double v = double(small.tables[0]->values[size_t(size.n_in) + size_t(i)]);
        a += v * double(small.tables[1]->values[size_t(o) * size_t(size.n_in) + size_t(i)]);
        if (size.gated) b += v * double(small.tables[2]->values[size_t(o) * size_t(size.n_in) + size_t(i)]);
      }
      y.push_back(size.gated ? a / (1 + std::exp(-2 * 0.7978845608 * (a + 0.044715 * a * a * a))) * b : a);
    }
    graph::SequenceView sequence;
    const Row row{1, 0, 0, 0};
    std::vector<float> first;
    for (int repeat = 0; repeat < 20; ++repeat) {
      executable->submit({{&row, 1}, {&sequence, 1}});
      const auto got = executable->inspect(op.out);
      if (repeat == 0) {
        first.assign(got.begin(), got.end());
        EXPECT_LE(nmse(got, y), size.gated ? 2e-4 : 5e-5) << size.n_out << " rows of " << size.n_in;
      }
      ASSERT_EQ(0, std::memcmp(first.data(), got.data(), got.size_bytes()))
          << size.n_out << " rows of " << size.n_in << ", repeat " << repeat;
    }
  }
}

constexpr std::array<int, 3> kChangedOuts = {288, 1536, 256};
// One matrix whose outputs an activation, a factor and a residual change, a norm of them, then three bare
// matrices; over one row.
std::vector<graph::Op> add_changed_and_parts(SmallGraph& small, DType type, int n_in) {
  const auto& outs = kChangedOuts;
  const graph::ValueId x = small.input("x", DType::f32, n_in, 2, 1),
                       factor = small.input("f", DType::f32, outs[0], 2, 2),
                       residual = small.input("r", DType::f32, outs[0], 2, 3);
  std::vector<graph::Op> ops;
  for (int i = 0; i < 4; ++i) {  // the first alone, then three
    graph::Op op;
    op.kind = OpKind::matmul;
    op.in[0] = x;
    if (i == 0) op.act = graph::Activation::kGeluTanh, op.in[1] = residual, op.in[2] = factor;
    op.w[0] = small.add(make_table("w", type, n_in, outs[size_t(i % 3)], uint32_t(4 + i), 0.05f));
    op.out = small.value("y" + std::to_string(i), outs[size_t(i % 3)]);
    ops.push_back(op);
    if (i == 0) {  // a norm between, or they would be one launch
      graph::Op norm;
      norm.kind = OpKind::norm;
      norm.in[0] = op.out;
      norm.w[0] = small.add(make_table("n", DType::f32, outs[0], 1, 9));
      norm.eps = 1e-6f;
      norm.out = small.value("n", outs[0]);
      ops.push_back(norm);
    }
  }
  small.graph.ops.insert(small.graph.ops.end(), ops.begin(), ops.end());
  return ops;
}

// What becomes of a product of one row: activation, factor and residual; and three matrices over one row.
TEST_P(CudaMatmul, OneRowThatIsChangedAndOneInParts) {
  KVASIR_NEEDS_CUDA();
  const DType type = GetParam();
  if (formats::require(type).block == 1) GTEST_SKIP() << "not an int8 form";
  constexpr int kIn = 1536, kToken = 1;
  const auto& outs = kChangedOuts;
  SmallGraph small;
  const std::vector<graph::Op> ops = add_changed_and_parts(small, type, kIn);
  const auto backend = backends::create_backend("cuda", 1);
  backend->upload(small.graph, nullptr, nullptr);
  backends::Decisions decisions;
  decisions.keep_values = true;
  const auto executable = backend->compile(small.graph, decisions, {}, 1);
  const auto value = [&](size_t table, size_t i) { return double(small.tables[table]->values[i]); };
  graph::SequenceView sequence;
  const Row row{kToken, 0, 0, 0};
  std::vector<std::vector<float>> first(4);
  for (int repeat = 0; repeat < 5; ++repeat) {
    executable->submit({{&row, 1}, {&sequence, 1}});
    for (size_t i = 0; i < 4; ++i) {
      const size_t n_out = size_t(outs[i % 3]), table = i == 0 ? 3 : 4 + i;  // the norm's weights lie between
      const auto got = executable->inspect(ops[i == 0 ? 0 : i + 1].out);
      ASSERT_EQ(n_out, got.size());
      if (repeat > 0) {
        ASSERT_EQ(0, std::memcmp(first[i].data(), got.data(), got.size_bytes())) << i << ", " << repeat;
        continue;
      }
      first[i].assign(got.begin(), got.end());
      std::vector<double> y;
      for (size_t o = 0; o < n_out; ++o) {
        double sum = 0;
        for (size_t j = 0; j < kIn; ++j) sum += value(0, kToken * kIn + j) * value(table, o * kIn + j);
        if (i == 0)
          sum = sum / (1 + std::exp(-2 * 0.7978845608 * (sum + 0.044715 * sum * sum * sum))) *
                    value(1, kToken * n_out + o) +
                value(2, kToken * n_out + o);
        y.push_back(sum);
      }
      EXPECT_LE(nmse(got, y), 2e-4) << i;
    }
  }
}

// Two norms and a residual before a product, which makes them itself when there is one row; another product
// reads what the first norm leaves.
struct NormedGraph {
  SmallGraph small;
  std::vector<double> expected;
  // cancels: the residual is the first norm's output but for a thousandth, and the other way.
  NormedGraph(DType type, int n, bool cancels = false) {
    constexpr int kMiddle = 512, kVocab = 264, kToken = 1;
    constexpr float kScale = 0.8f, kEps = 1e-6f;
    const graph::ValueId x = small.input("x", DType::f32, n, 2, 1), r = small.input("r", DType::f32, n, 2, 2);
    const auto push = [&](OpKind kind, std::array<graph::ValueId, 3> in, graph::WeightId w,
                          graph::ValueId out) {
      graph::Op op;
      op.kind = kind;
      op.in = in;
      op.w[0] = w;
      op.eps = kEps;
      op.out = out;
      small.graph.ops.push_back(op);
    };
    const graph::ValueId first = small.value("first", n), second = small.value("second", n),
                         middle = small.value("middle", kMiddle), last = small.value("last", n);
    push(OpKind::norm, {x, r, graph::kNone}, small.add(make_table("w1", DType::f32, n, 1, 3)), first);
    small.graph.ops.back().scale = kScale;
    push(OpKind::norm, {first, graph::kNone, graph::kNone}, small.add(make_table("w2", DType::f32, n, 1, 4)),
         second);
    push(OpKind::matmul, {second, graph::kNone, graph::kNone},
         small.add(make_table("a", type, n, kMiddle, 5, 0.05f)), middle);
    push(OpKind::matmul, {middle, first, graph::kNone},
         small.add(make_table("b", type, kMiddle, n, 6, 0.02f)), last);
    push(OpKind::logits, {last, graph::kNone, graph::kNone},
         small.add(make_table("c", type, n, kVocab, 7, 0.05f)), graph::kNone);
    small.graph.n_vocab = kVocab;
    const auto at = [&](size_t table, int i) { return double(small.tables[table]->values[size_t(i)]); };
    const auto product = [&](size_t table, const std::vector<double>& v, int n_out) {
      std::vector<double> y(static_cast<size_t>(n_out));
      for (int o = 0; o < n_out; ++o)
        for (size_t i = 0; i < v.size(); ++i) y[size_t(o)] += v[i] * at(table, o * int(v.size()) + int(i));
      return y;
    };
    const auto normed = [&](const std::vector<double>& v, size_t table) {
      double squares = 0;
      for (double d : v) squares += d * d;
      std::vector<double> y;
      for (size_t i = 0; i < v.size(); ++i)
        y.push_back(v[i] / std::sqrt(squares / double(v.size()) + double(kEps)) * at(table, int(i)));
      return y;
    };
    std::vector<double> row;
    for (int i = 0; i < n; ++i) row.push_back(at(0, kToken * n + i));
    std::vector<double> kept = normed(row, 2);
    if (cancels) {
      Table& residual = *small.tables[1];
      for (int i = 0; i < n; ++i)
        residual.values[size_t(kToken * n + i)] = float(-kept[size_t(i)] * (1 + 0.001 * (i % 7 - 3)));
      std::memcpy(residual.bytes.data(), residual.values.data(), residual.bytes.size());
    }
    for (int i = 0; i < n; ++i) kept[size_t(i)] = (kept[size_t(i)] + at(1, kToken * n + i)) * double(kScale);
    std::vector<double> out = product(5, product(4, normed(kept, 3), kMiddle), n);
    for (int i = 0; i < n; ++i) out[size_t(i)] += kept[size_t(i)];
    expected = product(6, out, kVocab);
  }
};

TEST(CudaNorms, InsideTheProductsThatReadThem) {
  KVASIR_NEEDS_CUDA();
  for (int n : {256, 1536, 2048, 2304, 3840, 5376, 6144}) {
    for (const auto& [type, cancels] :
         {std::pair{DType::q8_0, false}, {DType::q4_k, false}, {DType::q8_0, true}}) {
      NormedGraph normed(type, n, cancels);
      std::vector<double> apart;
      for (bool keep : {true, false}) {  // launches of their own, inside
        const auto backend = backends::create_backend("cuda", 1);
        backend->upload(normed.small.graph, nullptr, nullptr);
        backends::Decisions decisions;
        decisions.keep_values = keep;
        const auto executable = backend->compile(normed.small.graph, decisions, {}, 1);
        graph::SequenceView sequence;
        const Row row{1, 0, 0, 1};
        for (int repeat = 0; repeat < 3; ++repeat) {
          executable->submit({{&row, 1}, {&sequence, 1}});
          const auto got = executable->read(0);
          EXPECT_LE(nmse(got, normed.expected), 2e-4) << n << (keep ? " apart" : " inside");
          if (keep) apart.assign(got.begin(), got.end());
          // What cancels leaves a few bits, which round to other int8 values here and there.
          if (!cancels) {
            EXPECT_LE(nmse(got, apart), 1e-5) << n;
          }
        }
      }
    }
  }
}

// Two products of one row by matrices of two types stand beside each other, the second much the shorter; a
// third reads what both have made.
struct BesideGraph {
  static constexpr int kLong = 8192, kShort = 128;
  SmallGraph small;
  graph::ValueId out;
  BesideGraph(int n, DType long_type, DType short_type) {
    const graph::ValueId x = small.input("x", DType::f32, n, 2, 1), row = small.value("row", n),
                         a = small.value("a", kLong), b = small.value("b", kShort);
    out = small.value("c", kShort);
    const auto push = [&](OpKind kind, std::array<graph::ValueId, 2> in, std::unique_ptr<Table> table,
                          graph::ValueId to) {
      graph::Op op;
      op.kind = kind;
      op.in = {in[0], in[1], graph::kNone};
      op.w[0] = small.add(std::move(table));
      op.eps = 1e-6f;
      op.out = to;
      small.graph.ops.push_back(op);
    };
    push(OpKind::norm, {x, graph::kNone}, make_table("w", DType::f32, n, 1, 3), row);
    push(OpKind::matmul, {row, graph::kNone}, make_table("a", long_type, n, kLong, 4, 0.05f), a);
    push(OpKind::matmul, {row, graph::kNone}, make_table("b", short_type, n, kShort, 5, 0.05f), b);
    push(OpKind::matmul, {a, b}, make_table("c", DType::q8_0, kLong, kShort, 6, 0.02f), out);
  }
  std::vector<double> product(size_t table, const std::vector<double>& v, int n_out) const {
    std::vector<double> y(static_cast<size_t>(n_out));
    for (int o = 0; o < n_out; ++o)
      for (size_t i = 0; i < v.size(); ++i)
        y[size_t(o)] += v[i] * double(small.tables[table]->values[size_t(o) * v.size() + i]);
    return y;
  }
  std::vector<double> expected(int n, int token) const {
    std::vector<double> v;
    double squares = 0;
    for (int i = 0; i < n; ++i) v.push_back(double(small.tables[0]->values[size_t(token * n + i)]));
    for (double d : v) squares += d * d;
    for (size_t i = 0; i < v.size(); ++i)
      v[i] *= double(small.tables[1]->values[i]) / std::sqrt(squares / n + 1e-6);
    std::vector<double> y = product(4, product(2, v, kLong), kShort);
    const std::vector<double> more = product(3, v, kShort);
    for (size_t i = 0; i < y.size(); ++i) y[i] += more[i];
    return y;
  }
};

TEST(CudaNorms, ProductsOfOneRowBesideEachOther) {
  KVASIR_NEEDS_CUDA();
  for (int n : {1536, 5376})
    for (const auto& [long_type, short_type] :
         {std::pair{DType::q4_k, DType::q6_k}, {DType::q6_k, DType::q4_k}, {DType::q8_0, DType::q5_k}}) {
      const BesideGraph beside(n, long_type, short_type);
      const auto backend = backends::create_backend("cuda", 1);
      backend->upload(beside.small.graph, nullptr, nullptr);
      const auto executable = backend->compile(beside.small.graph, {}, {}, 1);
      graph::SequenceView sequence;
      std::vector<float> first[2];
      for (int repeat = 0; repeat < 40; ++repeat) {  // of two rows in turn: an old one would be seen
        const Row step{repeat % 2, 0, 0, 0};
        executable->submit({{&step, 1}, {&sequence, 1}});
        const auto got = executable->inspect(beside.out);
        std::vector<float>& kept = first[repeat % 2];
        if (repeat < 2) kept.assign(got.begin(), got.end());
        ASSERT_EQ(kept.size(), got.size());
        ASSERT_EQ(0, std::memcmp(kept.data(), got.data(), got.size_bytes())) << n << ", " << repeat;
      }
      for (int token = 0; token < 2; ++token)
        EXPECT_LE(nmse(first[token], beside.expected(n, token)), 2e-4) << n << ", " << token;
    }
}

#ifdef KVASIR_HAVE_CUDA
// More shared memory than there is: said at once, and not a row of zeros. What comes after it runs.
TEST(CudaNorms, ALaunchThatCannotBeIsAnError) {
  KVASIR_NEEDS_CUDA();
  cuda::NormArgs args{};
  args.n = 1 << 20;
  EXPECT_THROW(cuda::norm_rows({nullptr, false}, args, 1), Error);
  NormedGraph normed(DType::q8_0, 256);
  const auto backend = backends::create_backend("cuda", 1);
  backend->upload(normed.small.graph, nullptr, nullptr);
  const auto executable = backend->compile(normed.small.graph, {}, {}, 1);
  graph::SequenceView sequence;
  const Row row{1, 0, 0, 1};
  executable->submit({{&row, 1}, {&sequence, 1}});
  EXPECT_LE(nmse(executable->read(0), normed.expected), 2e-4);
}
#endif

#ifdef KVASIR_HAVE_CUDA
// Random codes, scales near 2.4e-4.
struct RandomMatrix {
  cuda::MatrixView view;
  std::vector<cuda::Memory> memory;
  RandomMatrix(DType type, int n_in, int n_out, uint32_t seed) {
    view.form = cuda::weight_form(type);
    view.n_in = n_in, view.n_out = n_out;
    const cuda::PlaneBytes planes = cuda::plane_bytes(view.form, n_in, n_out);
    std::mt19937 random(seed);
    const auto plane = [&](int64_t bytes, bool codes) -> const uint8_t* {
      if (bytes == 0) return nullptr;
      std::vector<uint32_t> from(size_t(bytes + 3) / 4, 0x0c0c0c0c);
      if (codes) std::generate(from.begin(), from.end(), random);
      memory.emplace_back(size_t(bytes), cuda::Place::kDevice, "allocating a test's weights");
      cuda::check(cudaMemcpy(memory.back().as(), from.data(), size_t(bytes), cudaMemcpyHostToDevice),
                  "uploading");
      return memory.back().as<uint8_t>();
    };
    view.codes = plane(planes.codes, true);
    view.high = plane(planes.high, true);
    view.aux = plane(planes.aux, false);
    view.aux2 = plane(planes.aux2, false);
  }
};

// What a gated pair leaves as int8 groups are the bytes that quantising its row gives, and the product after
// it has the same bits from them as from the row; with the rows dealt to as many blocks as other devices
// have, too.
class CudaGroups : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(CudaGroups, LeftByAGatedPairAreThoseOfItsRow) {
  KVASIR_NEEDS_CUDA();
  using cuda::Memory;
  constexpr int kIn = 512, kOut = 144;
  const auto [n, multiprocessors] = GetParam();
  const auto take = [](size_t bytes) {
    return Memory(bytes, cuda::Place::kDevice, "allocating a test's rows");
  };
  const auto read = [](const Memory& memory) {
    std::vector<uint8_t> bytes(memory.size());
    cuda::check(cudaMemcpy(bytes.data(), memory.as(), bytes.size(), cudaMemcpyDeviceToHost),
                "reading a test's rows");
    return bytes;
  };
  std::vector<float> row(kIn);
  std::mt19937 random(9);
  for (float& v : row) v = std::normal_distribution<float>(0, 3)(random);
  const Memory x = take(4 * kIn), middle = take(size_t(n) * 4), q = take(size_t(n)),
               meta = take(size_t(n) / 4), all_q = take(size_t(n)), all_meta = take(size_t(n) / 4),
               out = take(4 * kOut);
  cuda::check(cudaMemcpy(x.as(), row.data(), 4 * kIn, cudaMemcpyHostToDevice), "uploading");
  for (DType pair_type : {DType::q8_0, DType::q4_k, DType::q6_k}) {
    const RandomMatrix gate(pair_type, kIn, n, 1), up(pair_type, kIn, n, 2);
    cuda::StreamArgs pair;
    pair.multiprocessors = multiprocessors;
    pair.product.n_in = kIn, pair.product.n_rows = 1, pair.product.x = x.as<float>();
    pair.product.parts[0].w = gate.view, pair.product.parts[0].w2 = up.view;
    pair.product.parts[0].n_out = n, pair.product.parts[0].out = middle.as<float>();
    pair.groups = {q.as<int8_t>(), meta.as<cuda::GroupMeta>()};
    const int made = cuda::stream_groups(pair.product, multiprocessors);
    cuda::stream_matvec({}, pair);
    cuda::quantize_rows({}, middle.as<float>(), n, 1, {all_q.as<int8_t>(), all_meta.as<cuda::GroupMeta>()});
    ASSERT_GE(made * 32, n / 3);
    ASSERT_EQ(0, std::memcmp(read(q).data(), read(all_q).data(), size_t(made) * 32)) << n;
    ASSERT_EQ(0, std::memcmp(read(meta).data(), read(all_meta).data(), size_t(made) * 8)) << n;
    for (DType type : {DType::q8_0, DType::q4_k, DType::q6_k, DType::iq4_nl}) {
      const RandomMatrix down(type, n, kOut, 3);
      cuda::StreamArgs args;
      args.multiprocessors = multiprocessors;
      args.product.n_in = n, args.product.n_rows = 1, args.product.x = middle.as<float>();
      args.product.quant = pair.groups;
      args.product.parts[0].w = down.view;
      args.product.parts[0].n_out = kOut, args.product.parts[0].out = out.as<float>();
      ASSERT_TRUE(cuda::can_stream(args.product)) << n << ' ' << formats::require(type).name;
      cuda::stream_matvec({}, args);
      const std::vector<uint8_t> from_row = read(out);
      args.made_groups = made;
      cuda::stream_matvec({}, args);
      ASSERT_EQ(from_row, read(out)) << n << ' ' << formats::require(type).name;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, CudaGroups,
                         testing::Values(std::pair{6144, 0}, std::pair{12288, 0}, std::pair{21504, 0},
                                         std::pair{8960, 0}, std::pair{21504, 114}, std::pair{12288, 78},
                                         std::pair{6144, 16}));
#endif

// One tile whose depth many blocks share; small enough for a memory checker.
TEST_P(CudaMatmul, OneTileOfManyBlocks) {
  KVASIR_NEEDS_CUDA();
  constexpr int kIn = 3072, kOut = 40, kRows = 20;
  SmallGraph small;
  graph::Op op;
  op.kind = OpKind::matmul;
  op.in[0] = small.input("x", DType::f32, kIn, kRows, 1);
  op.w[0] = small.add(make_table("w", GetParam(), kIn, kOut, 2, 0.05f));
  op.out = small.value("y", kOut);
  small.graph.ops.push_back(op);
  std::vector<Row> rows;
  std::vector<double> y;
  for (int r = 0; r < kRows; ++r) {
    rows.push_back({r, r, 0, 0});
    for (int o = 0; o < kOut; ++o) {
      double sum = 0;
      for (int i = 0; i < kIn; ++i)
        sum += double(small.tables[0]->values[size_t(r * kIn + i)]) *
               double(small.tables[1]->values[size_t(o * kIn + i)]);
      y.push_back(sum);
    }
  }
  const auto backend = backends::create_backend("cuda", 1);
  backend->upload(small.graph, nullptr, nullptr);
  backends::Decisions decisions;
  decisions.keep_values = true;
  const auto executable = backend->compile(small.graph, decisions, {}, kRows);
  graph::SequenceView sequence;
  executable->submit({rows, {&sequence, 1}});
  EXPECT_LE(nmse(executable->inspect(op.out), y), 2e-7);
}

#ifdef KVASIR_HAVE_CUDA
// What a load clears and uploads is there for every stream once the call returns, however busy the stream is
// that does it: a first step once used sums of products before they were cleared.
TEST(CudaLoad, WhatIsClearedAndFilledIsThere) {
  KVASIR_NEEDS_CUDA();
  const size_t n = size_t(1) << 20;
  const cuda::Memory large(size_t(1) << 30, cuda::Place::kDevice, "allocating a test's rows"),
      small(n, cuda::Place::kDevice, "allocating a test's rows"),
      seen(n, cuda::Place::kHost, "allocating a test's rows");
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  const std::vector<uint8_t> filled(n, 0x5a), zero(n, 0);
  for (bool clears : {true, false}) {
    cuda::check(cudaMemset(small.as(), 0xff, n), "filling");
    cuda::check(cudaDeviceSynchronize(), "filling");
    for (int i = 0; i < 64; ++i) cuda::check(cudaMemsetAsync(large.as(), i, large.size()), "keeping it busy");
    if (clears)
      small.clear("clearing");
    else
      small.fill(filled.data(), n, "filling");
    cuda::check(cudaMemcpyAsync(seen.as(), small.as(), n, cudaMemcpyDeviceToHost, stream), "reading");
    cuda::check(cudaStreamSynchronize(stream), "reading");
    EXPECT_EQ(0, std::memcmp(seen.as(), clears ? zero.data() : filled.data(), n))
        << (clears ? "clear" : "fill");
  }
  cuda::check(cudaStreamDestroy(stream), "ending a stream");
}
#endif

// Prompts: sums that one block makes and sums that many share, tiles that are not full, both ways of
// computing.
TEST_P(CudaMatmul, PromptsOfEverySize) {
  KVASIR_NEEDS_CUDA();
  struct Size {
    int n_in, n_out, rows;
    bool gated;
  };
  for (const Size& size :
       {Size{1536, 300, 17, false}, Size{256, 1030, 64, true}, Size{512, 5000, 65, false},
        Size{6144, 258, 128, false}, Size{768, 1000, 129, true}, Size{6144, 130, 300, false},
        Size{256, 9000, 512, false}, Size{512, 70, 400, false}, Size{1280, 2600, 700, true},
        Size{1536, 260, 2048, false}}) {
    SmallGraph small;
    const graph::ValueId x = small.input("x", DType::f32, size.n_in, 50, 1);
    graph::Op op;
    op.kind = size.gated ? OpKind::gated_mlp : OpKind::matmul;
    op.act = size.gated ? graph::Activation::kGeluTanh : graph::Activation::kNone;
    op.in[0] = x;
    op.w[0] = small.add(make_table("w", GetParam(), size.n_in, size.n_out, 2, 0.05f));
    if (size.gated) op.w[1] = small.add(make_table("w2", GetParam(), size.n_in, size.n_out, 3, 0.05f));
    op.out = small.value("y", size.n_out);
    small.graph.ops.push_back(op);
    std::vector<Row> rows;
    for (int i = 0; i < size.rows; ++i) rows.push_back({i * 7 % 50, i, 0, 0});
    std::vector<double> y;
    const auto dot = [&](int token, int o, size_t table) {
      double sum = 0;
      const float *a = small.tables[0]->values.data() + size_t(token) * size_t(size.n_in),
                  *b = small.tables[table]->values.data() + size_t(o) * size_t(size.n_in);
      for (int i = 0; i < size.n_in; ++i) sum += double(a[i]) * double(b[i]);
      return sum;
    };
    const std::vector<int> tokens{0, 7, 43};  // of 17 rows: 0, 1 and none
    for (int token : tokens)
      for (int o = 0; o < size.n_out; ++o) {
        const double a = dot(token, o, 1);
        y.push_back(size.gated ? a / (1 + std::exp(-2 * 0.7978845608 * (a + 0.044715 * a * a * a))) *
                                     dot(token, o, 2)
                               : a);
      }
    graph::SequenceView sequence;
    for (bool portable : {false, true}) {
      const auto backend = backends::create_backend("cuda", 1);
      backend->upload(small.graph, nullptr, nullptr);
      backends::Decisions decisions;
      decisions.keep_values = true;
      decisions.portable_kernels = portable;
      const auto executable = backend->compile(small.graph, decisions, {}, size.rows);
      std::vector<float> first;
      for (int repeat = 0; repeat < 3; ++repeat) {
        executable->submit({rows, {&sequence, 1}});
        const auto all = executable->inspect(op.out);
        if (repeat == 0) first.assign(all.begin(), all.end());
        ASSERT_EQ(0, std::memcmp(first.data(), all.data(), all.size_bytes())) << "not the same bits again";
      }
      // Rows of one token are the same, wherever they lie.
      std::vector<float> got;
      for (int token : tokens)
        for (int r = 0, met = 0; r < size.rows; ++r) {
          if (rows[size_t(r)].token != token) continue;
          const std::span<const float> row(first.data() + size_t(r) * size_t(size.n_out), size_t(size.n_out));
          if (met++ == 0) got.insert(got.end(), row.begin(), row.end());
          ASSERT_LE(nmse(row, std::vector<double>(got.end() - size.n_out, got.end())), 1e-9)
              << "row " << r << " of " << size.rows;
        }
      y.resize(got.size());
      EXPECT_LE(nmse(got, y), size.gated ? 8e-7 : 2e-7)
          << size.n_in << " -> " << size.n_out << ", " << size.rows << " rows"
          << (portable ? ", portable" : "");
    }
  }
}

TEST_P(CudaMatmul, LookupsAreTheScalarCodecs) {
  KVASIR_NEEDS_CUDA();
  constexpr int kWidth = 512, kTokens = 40;
  SmallGraph small;
  const graph::ValueId x = small.input("x", GetParam(), kWidth, kTokens, 5);
  const auto backend = backends::create_backend("cuda", 1);
  backend->upload(small.graph, nullptr, nullptr);
  backends::Decisions decisions;
  decisions.keep_values = true;
  const auto executable = backend->compile(small.graph, decisions, {}, kTokens);
  std::vector<Row> rows;
  for (int i = 0; i < kTokens; ++i) rows.push_back({i, i, 0, 0});
  graph::SequenceView sequence;
  executable->submit({rows, {&sequence, 1}});
  const auto got = executable->inspect(x);
  ASSERT_EQ(got.size(), small.tables[0]->values.size());
  EXPECT_EQ(0, std::memcmp(got.data(), small.tables[0]->values.data(), got.size_bytes()));
}

INSTANTIATE_TEST_SUITE_P(Types, CudaMatmul,
                         testing::Values(DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0,
                                         DType::q4_1, DType::q5_0, DType::q5_1, DType::q4_k, DType::q5_k,
                                         DType::q6_k, DType::q2_k, DType::q3_k, DType::iq4_nl, DType::iq4_xs),
                         [](const auto& info) { return std::string(formats::require(info.param).name); });

TEST(CudaMatmulRefuses, AnUnbuiltTypeByName) {
  KVASIR_NEEDS_CUDA();
  SmallGraph small;
  small.input("x", DType::tbq4_0, 256, 4, 1);
  const auto backend = backends::create_backend("cuda", 1);
  try {
    backend->upload(small.graph, nullptr, nullptr);
    FAIL() << "tbq4_0 was taken";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("tbq4_0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kvasir::test
