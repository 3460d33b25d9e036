// Speed of every matmul kernel beside what the machine can do in the same minute:
//   decode   one row, weights streamed from at least 512 MiB; GB/s and share of the read bandwidth
//   prefill  512 rows; GOP/s (2 a multiply-add) and share of the int8 peak (f32 peak for float types)
// for the row lengths of Gemma 4 E2B. Read slices alternate with decode slices, peak slices with prefill
// slices; slices in which another program held a core are dropped.
//   matmul [-t threads] [-s seconds a figure] [--isa NAME] [type ...]
#include "backends/cpu/kernels/matmul/matmul.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/rate_meter.h"
#include "backends/cpu/roofline.h"
#include "backends/cpu/roofline_kernels.h"
#include "formats/format.h"

namespace {

using namespace kvasir;
using namespace kvasir::cpu;

// Row lengths of E2B and the output rows each feeds (1536: gate, up, both widths of layers, q, k; 2048: o;
// others: down).
struct Shape {
  int64_t n_in, n_out;
};
constexpr Shape kShapes[] = {
    {1536, 2 * 6144 + 2 * 12288 + 2048 + 256}, {2048, 1536}, {6144, 1536}, {12288, 1536}};
constexpr size_t kWeightBytes = size_t(512) << 20;
constexpr int kPrefillRows = 512;

struct Options {
  int threads = cpu_count();
  double seconds = 0.5;
  Isa isa = best_isa();
  std::vector<std::string> types;
};

std::vector<float> random_floats(int64_t n, float scale) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// A tall matrix of at least kWeightBytes: one random panel, repeated.
PackedMatrix make_matrix(const MatmulVariant& variant, const formats::Format& format, int64_t n_in,
                         ThreadPool& pool) {
  const std::vector<float> values = random_floats(n_in * kPanelRows, 0.05f);
  std::vector<std::byte> rows(format.row_bytes(n_in) * kPanelRows);
  format.encode(values.data(), rows.data(), n_in * kPanelRows);
  const size_t panel_bytes = packed_bytes(variant, n_in, kPanelRows);
  const int64_t n_panels = int64_t((kWeightBytes + panel_bytes - 1) / panel_bytes);
  PackedMatrix w;
  w.variant = &variant, w.type = format.type, w.n_in = n_in, w.n_out = n_panels * kPanelRows;
  w.data = AlignedBuffer(size_t(n_panels) * panel_bytes);
  pack_panels(variant, rows.data(), n_in, kPanelRows, 0, 1, w.data.data());
  pool.run([&](int thread) {
    for (int64_t p = 1 + thread; p < n_panels; p += pool.size())
      std::memcpy(w.data.data() + size_t(p) * panel_bytes, w.data.data(), panel_bytes);
  });
  return w;
}

struct Input {
  std::vector<float> x;
  AlignedBuffer packed;
  Activations view;

  Input(const MatmulVariant& variant, Isa isa, int64_t n_in, int n_rows)
      : x(random_floats(n_in * n_rows, 1)) {
    view.form = activation_form(variant), view.n_rows = n_rows, view.n_in = n_in, view.stride = n_in;
    view.f32 = x.data();
    packed = AlignedBuffer(quantized_bytes(n_in, n_rows));
    quantize_rows(isa, x.data(), n_in, n_in, n_rows, 0, n_rows, packed.data());
    view.packed = packed.data();
  }
};

// Runs panels [begin, begin + n) of w, every thread its share; the rate is panels/s. A tile of 128 rows has
// its own activations.
Slice run_panels(ThreadPool& pool, const PackedMatrix& w, const std::vector<Input>& inputs, int64_t begin,
                 int64_t n) {
  return measure_slice(pool, [&](int thread) {
    alignas(64) float acc[kMaxTileRows * kPanelRows];
    // Rows outside: a tile's activations stay in L2 while the panels pass.
    for (const Input& input : inputs)
      for (int64_t i = thread; i < n; i += pool.size())
        matmul_tile(w, input.view, (begin + i) % w.n_panels(), 0, input.view.n_rows, acc);
    return double((n - thread + pool.size() - 1) / pool.size());
  });
}

struct Figure {
  CleanRates rate, roof;
};

template <class Work, class Roof>
Figure alternate(double seconds, const Work& work, const Roof& roof) {
  std::vector<Slice> rates, roofs;
  const auto begin = std::chrono::steady_clock::now();
  while (rates.size() < 5 || seconds_since(begin) < seconds) rates.push_back(work()), roofs.push_back(roof());
  return {summarise(rates), summarise(roofs)};
}

Figure measure_decode(ThreadPool& pool, ReadProbe& probe, const PackedMatrix& w, Isa isa, double seconds) {
  std::vector<Input> inputs;
  inputs.emplace_back(*w.variant, isa, w.n_in, 1);
  const size_t panel_bytes = packed_bytes(*w.variant, w.n_in, kPanelRows);
  const int64_t n = int64_t((size_t(32) << 20) / panel_bytes) * pool.size();
  int64_t at = 0;
  const auto work = [&] {
    const Slice slice = run_panels(pool, w, inputs, (at += n) - n, n);
    return Slice{slice.rate * double(panel_bytes), slice.busy};
  };
  return alternate(seconds, work, [&] { return probe.measure(); });
}

Figure measure_prefill(ThreadPool& pool, const PackedMatrix& w, Isa isa, double seconds) {
  std::vector<Input> inputs;
  for (int i = 0; i < kPrefillRows / kMaxTileRows; ++i)
    inputs.emplace_back(*w.variant, isa, w.n_in, kMaxTileRows);
  const double panel_ops = 2.0 * double(w.n_in) * kPanelRows * kPrefillRows;
  const bool int8 = activation_form(*w.variant) == ActivationForm::kInt8;
  const RooflineKernels kernels = roofline_kernels(isa);
  const auto loop = int8 && kernels.int8 ? kernels.int8 : kernels.f32;
  const int64_t rounds = 300000,  // about a millisecond, like a slice of work
      n = std::max<int64_t>(1, int64_t(1e9 / panel_ops)) * pool.size();
  int64_t at = 0;
  const auto work = [&] {
    const Slice slice = run_panels(pool, w, inputs, (at += n) - n, n);
    return Slice{slice.rate * panel_ops, slice.busy};
  };
  return alternate(seconds, work, [&] { return measure_slice(pool, [&](int) { return loop(rounds); }); });
}

// Rates over several shapes: total work over the sum of times.
struct Sum {
  double work = 0, time_best = 0, time_median = 0, roof_time_best = 0, roof_time_median = 0;
  bool contended = false;
  void add(double amount, const Figure& f) {
    work += amount, time_best += amount / f.rate.best, time_median += amount / f.rate.median;
    roof_time_best += amount / f.roof.best, roof_time_median += amount / f.roof.median;
    contended |= f.rate.contended || f.roof.contended;
  }
  void print() const {
    std::printf(" %.1f (%.1f) | %.0f %% (%.0f %%)%s |", work / time_best / 1e9, work / time_median / 1e9,
                100 * roof_time_best / time_best, 100 * roof_time_median / time_median,
                contended ? " contended" : "");
  }
};

void bench_type(const MatmulVariant& variant, const formats::Format& format, const Options& options,
                ThreadPool& pool, ReadProbe& probe) {
  Sum decode, prefill;
  for (const Shape& shape : kShapes) {
    const PackedMatrix w = make_matrix(variant, format, shape.n_in, pool);
    const double weights = double(shape.n_in * shape.n_out);
    decode.add(weights, measure_decode(pool, probe, w, options.isa, options.seconds));
    prefill.add(weights, measure_prefill(pool, w, options.isa, options.seconds));
  }
  std::printf("| %s |", matmul_name(variant));
  decode.print();
  prefill.print();
  std::printf("\n");
  std::fflush(stdout);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const char* next = i + 1 < argc ? argv[i + 1] : nullptr;
    if (arg == "-t" && next)
      options.threads = std::atoi(next), ++i;
    else if (arg == "-s" && next)
      options.seconds = std::atof(next), ++i;
    else if (arg == "--isa" && next && find_isa(next))
      options.isa = *find_isa(next), ++i;
    else if (formats::find(arg))
      options.types.push_back(arg);
    else {
      std::fprintf(stderr, "usage: matmul [-t threads] [-s seconds] [--isa NAME] [type ...]; types: %s\n",
                   formats::names(formats::kWeights).c_str());
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  ThreadPool pool(options.threads);
  ReadProbe probe(pool, options.isa);
  std::printf("%s, %d threads; best slice (median slice)\n", cpu_name().c_str(), options.threads);
  std::printf(
      "| kernel | decode GB/s | of read | prefill GOP/s | of peak |\n| --- | ---: | ---: | ---: | ---: |\n");
  for (const formats::Format& format : formats::all()) {
    const MatmulVariant* variant = find_matmul(format.type, options.isa);
    const bool wanted = options.types.empty() ||
                        std::count(options.types.begin(), options.types.end(), std::string(format.name)) > 0;
    if (variant && wanted) bench_type(*variant, format, options, pool, probe);
  }
  return 0;
}
