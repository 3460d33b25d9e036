// Log sink handed down by the application; the library itself never prints.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace kvasir {

enum class LogLevel { kDebug, kInfo, kWarning };

class Log {
 public:
  using Sink = std::function<void(LogLevel, std::string_view line)>;
  Log() = default;
  explicit Log(Sink sink) : sink_(std::move(sink)) {}

  template <typename... Args>
  void write(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    if (sink_) sink_(level, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kInfo, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kWarning, format, std::forward<Args>(args)...);
  }

 private:
  Sink sink_;
};

}  // namespace kvasir
