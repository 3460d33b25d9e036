#include <fmt/ranges.h>

#include "build_info.h"
#include "command.h"

namespace kvasir::app {
namespace {

// Text as roff: backslashes and hyphens that must stay, lines that must not look like requests.
std::string roff(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      out += std::string("\\&") + c;
    else
      out += c;
  }
  return out;
}

std::string option(const Flag& flag) {
  std::string out = ".TP\n";
  const auto names = flag.spellings();
  for (size_t i = 0; i < names.size(); ++i)
    out += fmt::format("{}{}{}\\fR", i ? ", " : "", flag.positional() ? "\\fI" : "\\fB", roff(names[i]));
  if (flag.takes_value() && !flag.positional()) out += fmt::format(" \\fI{}\\fR", roff(flag.argument));
  out += "\n" + roff(flag.help);
  const auto values = known_values(flag);
  if (!values.empty()) out += fmt::format(": {}", roff(fmt::format("{}", fmt::join(values, ", "))));
  out += ".";
  if (!flag.fallback.empty()) out += fmt::format(" Default: {}.", roff(flag.fallback));
  return out + "\n";
}

std::string paragraphs(std::string_view text) {
  std::string out;
  bool within = false;  // a paragraph, whose lines after the first are items of a list
  for (const std::string& line : split(text, '\n')) {
    out += line.empty() ? ".PP\n" : (within ? ".br\n" : "") + roff(line) + "\n";
    within = !line.empty();
  }
  return out;
}

std::string command_section(const Command& command) {
  std::string out = fmt::format(".SS \"kvasir {} {}\"\n{}.\n.PP\n", command.name, roff(command.usage),
                                roff(command.summary));
  out += paragraphs(command.description);
  for (const Flag& flag : command.flags)
    if (flag.key() != "help") out += option(flag);
  return out;
}

constexpr std::string_view kTail = R"(.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
A check failed, or an error inside the program.
.TP
.B 2
Bad usage: an unknown option, a value out of range, text that is not UTF\-8.
.TP
.B 3
Refused: something this build does not support. The message says what is required, supported and missing.
.TP
.B 4
Bad input file. The message names the file, the place in it and the reason.
.TP
.B 5
The requested device or backend is not there.
.TP
.B 6
It does not fit in memory. The message says how much it needs and what would fit.
.SH ENVIRONMENT
Every option of a sub\-command may also be given as an environment variable: KVASIR_ and the long name in capitals with
underscores, as in KVASIR_THREADS=4 or KVASIR_CACHE_TYPE_K=f16. The command line wins.
.TP
.B NO_COLOR
When set and not empty, no colour is used.
.SH OUTPUT
Data goes to standard output, everything else to standard error. Progress bars appear only on a terminal.
)";

}  // namespace

std::string man_page() {
  std::string out =
      fmt::format(".TH KVASIR 1 \"\" \"kvasir {}\" \"User Commands\"\n", roff(build_info::kVersion));
  out +=
      ".SH NAME\nkvasir \\- local inference of language models\n.SH SYNOPSIS\n.B kvasir\n.I "
      "COMMAND\n[\\fIoptions\\fR]\n";
  out +=
      ".SH DESCRIPTION\nKvasir runs language models from GGUF files on this machine. Without a model it uses "
      "a small "
      "test model that comes with it.\n";
  out += ".SH OPTIONS\n";
  for (const Flag& flag : program_flags()) out += option(flag);
  out += ".SH COMMANDS\n";
  for (const Command& command : commands()) out += command_section(command);
  out += kTail;
  out += ".SH EXAMPLES\n";
  for (const Command& command : commands())
    for (const Example& example : command.examples)
      out += fmt::format(".TP\n.B {}\n{}.\n", roff(example.line), roff(example.meaning));
  return out;
}

}  // namespace kvasir::app
