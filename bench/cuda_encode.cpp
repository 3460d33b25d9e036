// How fast a CUDA device encodes full pages of each cache type: 512 rows of keys and values at a time, as a
// prompt's micro-batch fills them, and one page of them, as a generated token does.
//   build/bench/cuda_encode [head size, default 512]
#include <cstdio>
#include <cstdlib>
#ifdef KVASIR_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/kernels/kv_append/kv_append.h"
#include "backends/cuda/kernels/kv_forms/dtypes.h"
#include "backends/cuda/runtime/cuda_backend.h"
#include "backends/cuda/runtime/device.h"
#include "base/half.h"
#include "formats/format.h"
#include "formats/qjl1_256.h"
#include "formats/tcq_table.h"

namespace kvasir::cuda {
namespace {

constexpr int kRows = 512, kPages = kRows / 64;

Memory upload(const void* data, size_t bytes) {
  Memory memory(bytes, Place::kDevice, "a buffer");
  check(cudaMemcpy(memory.as(), data, bytes, cudaMemcpyHostToDevice), "filling a buffer");
  return memory;
}

// Everything a step needs to encode kPages pages of one sequence.
struct Bench {
  Memory pages, exact, rows, tables, fault, projection, level, rounded;
  HeadArgs args;
  StepView step;

  Bench(DType k, DType v, int d) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> half(size_t(kPages) * 64 * size_t(d) * 2);
    for (uint16_t& h : half) h = f32_to_f16(normal(random));
    exact = upload(half.data(), half.size() * sizeof(uint16_t));
    std::vector<graph::Row> row;
    for (int i = 0; i < kRows; ++i) row.push_back({0, i, 0, 0});
    rows = upload(row.data(), row.size() * sizeof(graph::Row));
    std::vector<int32_t> table;
    for (int kind = 0; kind < 4; ++kind)
      for (int p = 0; p < kPages; ++p) table.push_back(p);
    tables = upload(table.data(), table.size() * sizeof(int32_t));
    const int32_t none[2] = {-1, -1};
    fault = upload(none, sizeof none);
    projection = upload(formats::qjl_projection(), size_t(128) * formats::kSketch * sizeof(float));
    const formats::TcqTable& tcq = formats::own_tcq_table();
    level = upload(tcq.level.data(), sizeof tcq.level);
    rounded = upload(tcq.rounded.data(), sizeof tcq.rounded);
    KvView& kv = args.kv;
    kv.k_form = *kv_form(k);
    kv.v_form = *kv_form(v);
    kv.n_kv = 1;
    kv.head_dim = d;
    kv.page_bytes = region_bytes(kv.k_form, d) + region_bytes(kv.v_form, d);
    pages = Memory(size_t(kv.page_bytes) * kPages, Place::kDevice, "pages");
    kv.pages = pages.as<uint8_t>();
    kv.exact = exact.as<uint8_t>();
    kv.n_exact = kPages;
    kv.exact_page_bytes = int64_t(64) * d * 2 * 2;
    kv.tables = {projection.as<float>(), nullptr, level.as<float>(), rounded.as<int8_t>(), tcq.step};
    args.fault = fault.as<int32_t>();
    step.rows = rows.as<graph::Row>();
    step.tables = tables.as<int32_t>();
    step.table_stride = kPages;
  }

  // Microseconds of a launch: the least of 20.
  double time(int n_rows) {
    StepView some = step;
    some.rows += kRows - n_rows;
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "an event");
    check(cudaEventCreate(&end), "an event");
    float least = 1e9f;
    for (int i = 0; i < 23; ++i) {
      check(cudaEventRecord(begin), "timing");
      encode_pages({nullptr, false}, args, some, n_rows, false);
      check(cudaEventRecord(end), "timing");
      check(cudaEventSynchronize(end), "encoding");
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (i > 2) least = std::min(least, ms);
    }
    check(cudaGetLastError(), "encoding");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return double(least) * 1e3;
  }
};

int run(int d) {
  if (const std::string why = device_problem(); !why.empty()) {
    std::printf("cuda: %s\n", why.c_str());
    return 5;
  }
  std::printf("| type | head size | 512 rows, us | Mvalues/s | one page, us |\n|---|--:|--:|--:|--:|\n");
  for (const formats::Format& format : formats::all()) {
    if (!kv_form(format.type) || !format.open_page() || !format.takes(d)) continue;
    const bool both = format.has_role(formats::kValues);
    Bench bench(format.type, both ? format.type : DType::f16, d);
    const double many = bench.time(kRows), one = bench.time(1);
    std::printf("| %s | %d | %.1f | %.0f | %.1f |\n", std::string(format.name).c_str(), d, many,
                double(kRows) * d * (both ? 2 : 1) / many, one);
  }
  return 0;
}

}  // namespace
}  // namespace kvasir::cuda

int main(int argc, char** argv) { return kvasir::cuda::run(argc > 1 ? std::atoi(argv[1]) : 512); }
#else
int main() {
  std::printf("not built with CUDA (configure with -DKVASIR_CUDA=ON)\n");
  return 5;
}
#endif
