// The terminal: colours, log lines, a progress bar, Ctrl-C.
#pragma once
#include <fmt/format.h>

#include <atomic>
#include <string>
#include <string_view>

#include "base/log.h"

namespace kvasir::app {

bool out_is_terminal();
bool err_is_terminal();
bool in_is_terminal();
// A terminal, NO_COLOR not set, TERM not "dumb".
bool out_has_color();
bool err_has_color();

// Writes to stdout; throws Error{kFailed} with the system's reason when that fails (disk full).
void print(std::string_view text);
void flush_out();
// Lines on stderr, each beginning "kvasir: ".
void note(std::string_view line);
template <typename... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  note(std::string_view(fmt::format(format, std::forward<Args>(args)...)));
}
// Plain text on stderr.
void print_err(std::string_view text);

// Sink for the library. Quiet: warnings only; verbose: everything.
enum class Loudness { kQuiet, kNormal, kVerbose };
Log make_log(Loudness loudness);

// A bar on stderr when it is a terminal; nothing otherwise. Erased by the destructor.
class Progress {
 public:
  explicit Progress(std::string label) : label_(std::move(label)) {}
  ~Progress() { clear(); }
  void update(double fraction);
  void clear();

 private:
  std::string label_;
  int shown_ = -1;
};

// While alive, the first Ctrl-C only sets the flag; the second ends the program.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  const std::atomic<bool>& flag() const;
  bool hit() const { return flag().load(); }
};

// "1.5 GiB"
std::string size_text(double bytes);
// "15.6 M"
std::string count_text(double count);

}  // namespace kvasir::app
