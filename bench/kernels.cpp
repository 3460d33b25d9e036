// Speed of every kernel of a backend beside what the device can do in the same run.
//   kernels [--backend cuda|cpu] [--filter TEXT] [-r repeats] [--portable]
// cuda: a row a kernel and shape: time, GB/s of the bytes it must move and their share of a device copy,
// TFLOP/s and their share of a bf16 matmul. --filter: rows whose line has TEXT. --portable: kernels that
// sm_80 runs too. cpu: runs the programs beside this one that measure its kernels (matmul, attention); the
// rest of the line is theirs.
#include "cuda/kernels.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "backends/registry/registry.h"
#include "base/error.h"

namespace {

using namespace kvasir;

int usage() {
  std::fprintf(stderr, "usage: kernels [--backend cuda|cpu] [--filter TEXT] [-r repeats] [--portable]\n");
  return 2;
}

// Runs a program of this folder to its end; its exit status.
int run_beside(const std::filesystem::path& folder, const std::string& name,
               const std::vector<std::string>& rest) {
  const std::string path = (folder / name).string();
  std::printf("## %s\n\n", name.c_str());
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    std::vector<char*> arguments{const_cast<char*>(path.c_str())};
    for (const std::string& arg : rest) arguments.push_back(const_cast<char*>(arg.c_str()));
    arguments.push_back(nullptr);
    execv(path.c_str(), arguments.data());
    std::fprintf(stderr, "kernels: %s is not there: build bench_%s\n", path.c_str(), name.c_str());
    _exit(1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) < 0) return 1;
  std::printf("\n");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int run_cpu(const std::vector<std::string>& rest) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* name : {"matmul", "attention"})
    if (const int status = run_beside(folder, name, rest)) return status;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string backend = "cuda";
  bench::KernelOptions options;
  std::vector<std::string> rest;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const bool more = i + 1 < argc;
    if (arg == "--backend" && more)
      backend = argv[++i];
    else if (arg == "--filter" && more)
      options.filter = argv[++i];
    else if (arg == "-r" && more)
      options.repeats = std::max(1, std::atoi(argv[++i]));
    else if (arg == "--portable")
      options.portable = true;
    else
      rest.push_back(arg);
  }
  if (backend == "cpu") return run_cpu(rest);
  if (backend != "cuda" || !rest.empty()) return usage();
  for (const backends::BackendStatus& status : backends::known_backends())
    if (status.name == backend && !status.available) {
      std::fprintf(stderr, "kernels: %s: %s\n", backend.c_str(), status.reason.c_str());
      return int(ErrorCode::kNoDevice);
    }
  try {
    bench::run_cuda_kernels(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "kernels: %s\n", error.what());
    return int(error.code());
  }
  return 0;
}
