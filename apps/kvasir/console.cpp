#include "console.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace kvasir::app {
namespace {

// A signal handler can reach nothing but a global.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) { interrupted.store(true); }

bool color_allowed() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return !(no_color && *no_color) && !(term && std::string_view(term) == "dumb");
}

}  // namespace

bool out_is_terminal() { return isatty(STDOUT_FILENO) != 0; }
bool err_is_terminal() { return isatty(STDERR_FILENO) != 0; }
bool in_is_terminal() { return isatty(STDIN_FILENO) != 0; }
bool out_has_color() { return out_is_terminal() && color_allowed(); }
bool err_has_color() { return err_is_terminal() && color_allowed(); }

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
    fail(ErrorCode::kFailed, "cannot write to standard output: {}", std::strerror(errno));
}

void flush_out() {
  if (std::fflush(stdout) != 0)
    fail(ErrorCode::kFailed, "cannot write to standard output: {}", std::strerror(errno));
}

void print_err(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

void note(std::string_view line) { print_err(fmt::format("kvasir: {}\n", line)); }

Log make_log(Loudness loudness) {
  return Log([loudness](LogLevel level, std::string_view line) {
    if (level == LogLevel::kDebug && loudness != Loudness::kVerbose) return;
    if (level == LogLevel::kInfo && loudness == Loudness::kQuiet) return;
    note("{}{}", level == LogLevel::kWarning ? "warning: " : "", line);
  });
}

void Progress::update(double fraction) {
  constexpr int kBar = 40;
  const int percent = int(fraction * 100);
  if (!err_is_terminal() || percent == shown_) return;
  shown_ = percent;
  const int full = int(fraction * kBar);
  print_err(fmt::format("\r{} [{}{}] {:3} %", label_, std::string(size_t(full), '#'),
                        std::string(size_t(kBar - full), ' '), percent));
}

void Progress::clear() {
  if (shown_ >= 0) print_err("\r\033[K");
  shown_ = -1;
}

Interrupt::Interrupt() {
  interrupted.store(false);
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = int(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() { std::signal(SIGINT, SIG_DFL); }

const std::atomic<bool>& Interrupt::flag() const { return interrupted; }

std::string size_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1024.0 * 1024) return fmt::format("{:.1f} KiB", bytes / 1024);
  if (bytes < 1024.0 * 1024 * 1024) return fmt::format("{:.1f} MiB", bytes / 1024 / 1024);
  return fmt::format("{:.2f} GiB", bytes / 1024 / 1024 / 1024);
}

std::string count_text(double count) {
  if (count < 1e6) return fmt::format("{:.1f} K", count / 1e3);
  if (count < 1e9) return fmt::format("{:.2f} M", count / 1e6);
  return fmt::format("{:.2f} B", count / 1e9);
}

}  // namespace kvasir::app
