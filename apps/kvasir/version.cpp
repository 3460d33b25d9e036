#include "version.h"

#include <fmt/format.h>

#include "base/cpu_features.h"
#include "build_info.h"
#include "command.h"

namespace kvasir::app {

std::string commit() { return build_info::kCommit; }
std::string kernel_hash(std::string_view backend) {
  if (backend == "cuda") return build_info::kCudaKernelHash;
  return backend == "cpu" ? build_info::kKernelHash : "";
}
std::string compiler_text(std::string_view backend) {
  const std::string host = build_info::kCompiler;
  return backend == "cuda" ? host + ", " + build_info::kCudaCompiler : host;
}

std::string version_text() {
  const std::string cuda = kernel_hash("cuda");
  return fmt::format("kvasir {}\ncommit       {}\nkernel_hash  {}\n{}backends     cpu ({}){}\ncompiler     {}\nflags        {}\n",
                     build_info::kVersion, commit(), kernel_hash(),
                     cuda.empty() ? "" : fmt::format("cuda         {}\n", cuda), isa_name(best_isa()),
                     cuda.empty() ? "" : ", cuda", compiler_text(cuda.empty() ? "cpu" : "cuda"),
                     build_info::kFlags);
}

std::string license_text() {
  return "Kvasir is under the Apache License 2.0 (file LICENSE).\n"
         "\n"
         "Libraries in this program:\n"
         "  {fmt}          MIT\n"
         "  nlohmann/json  MIT\n"
         "  CLI11          BSD-3-Clause\n"
         "  OpenSSL        Apache-2.0 (libcrypto, for SHA-256)\n"
         "\n"
         "The test model tiny-gemma4 was trained on public-domain novels; models/LICENSES.md lists them.\n"
         "Other models have their own licences: Gemma's are at https://ai.google.dev/gemma/terms.\n";
}

}  // namespace kvasir::app
