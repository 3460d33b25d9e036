// The one error type. Thrown where a fault is found; kernels never throw; apps turn it into an exit code.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace kvasir {

// Values are the exit codes of the `kvasir` program.
enum class ErrorCode : int {
  kFailed = 1,    // a failed check or an internal error
  kUsage = 2,     // bad flags or arguments
  kRefused = 3,   // unsupported: the message names required / supported / missing
  kBadFile = 4,   // a malformed input file: the message names file, field, offset, reason
  kNoDevice = 5,  // the requested device is not there
  kNoMemory = 6,  // does not fit in memory
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Throws Error with a formatted message: fail(ErrorCode::kBadFile, "{}: {}", path, reason).
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvasir
