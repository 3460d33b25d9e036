// Prints this machine's read bandwidth and register-only peaks, by ISA and threads: roofline [threads]
// [seconds].
#include "backends/cpu/roofline.h"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  using namespace kvasir;
  const int max_threads = argc > 1 ? std::atoi(argv[1]) : cpu_count();
  const double seconds = argc > 2 ? std::atof(argv[2]) : 3.0;
  std::printf("%s (%s)\n", cpu_name().c_str(), cpu_feature_list().c_str());
  std::printf(
      "| isa | threads | read GB/s median (best) | int8 GOP/s median (best) | f32 GFLOP/s median (best) |\n");
  std::printf("| --- | ---: | ---: | ---: | ---: |\n");
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (!cpu_supports(isa)) continue;
    for (int threads = 1; threads <= max_threads; threads *= 2) {
      ThreadPool pool(threads);
      const cpu::Roofline r = cpu::measure_roofline(pool, seconds, isa);
      std::printf("| %s | %d | %.1f (%.1f) | %.0f (%.0f) | %.0f (%.0f) |\n",
                  std::string(isa_name(isa)).c_str(), threads, r.read_gb_s, r.read_best_gb_s, r.int8_gops,
                  r.int8_best_gops, r.f32_gflops, r.f32_best_gflops);
    }
  }
  return 0;
}
