#include <algorithm>

#include "base/error.h"
#include "command.h"
#include "options.h"

namespace kvasir::app {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kHelpColumn = 32;

std::string heading(std::string_view text, bool color) {
  return color ? fmt::format("\n\033[1m{}\033[0m\n", text) : fmt::format("\n{}\n", text);
}

// Words of `text` wrapped to kWidth, each line after the first indented.
std::string wrap(std::string_view text, size_t indent, size_t column) {
  std::string out;
  for (const std::string& word : split(text, ' ')) {
    if (column + word.size() + 1 > kWidth && column > indent) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!out.empty()) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

std::string meaning(const Flag& flag) {
  std::string text(flag.help);
  if (flag.kind == Kind::kKvType || flag.kind == Kind::kChoice || flag.kind == Kind::kKvTypes)
    text += fmt::format(": {}", fmt::join(known_values(flag), " "));
  if (!flag.fallback.empty()) text += fmt::format(" (default {})", flag.fallback);
  return text;
}

std::string option_line(const Flag& flag) {
  std::string left = "  " + std::string(flag.names);
  if (flag.takes_value() && !flag.positional()) left += fmt::format(" {}", flag.argument);
  if (left.size() + 2 > kHelpColumn)
    left += "\n" + std::string(kHelpColumn, ' ');
  else
    left.resize(kHelpColumn, ' ');
  return left + wrap(meaning(flag), kHelpColumn, kHelpColumn) + "\n";
}

}  // namespace

std::vector<std::string> known_values(const Flag& flag) {
  if (flag.kind == Kind::kChoice) return split(flag.choices, ' ');
  if (flag.kind == Kind::kOnOff) return {"on", "off", "auto"};
  if (flag.kind == Kind::kKvType || flag.kind == Kind::kKvTypes) {
    std::vector<std::string> names = cache_type_names();
    if (flag.fallback == "auto") names.insert(names.begin(), "auto");
    return names;
  }
  return {};
}

std::string command_help(const Command& command, bool color) {
  std::string out = fmt::format("kvasir {}: {}\n\nusage: kvasir {} {}\n", command.name, command.summary,
                                command.name, command.usage);
  if (!command.description.empty()) out += "\n";
  size_t start = 0;
  while (start < command.description.size()) {
    const size_t end = std::min(command.description.find("\n\n", start), command.description.size());
    const auto lines = split(command.description.substr(start, end - start), '\n');
    for (size_t i = 0; i < lines.size(); ++i)  // lines after the first are items of a list
      out += (i > 0 ? "  " + wrap(lines[i], 4, 2) : wrap(lines[i], 0, 0)) + "\n";
    start = end + 2;
    if (start < command.description.size()) out += "\n";
  }
  std::vector<std::string_view> groups;
  for (const Flag& flag : command.flags)
    if (std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  for (std::string_view group : groups) {
    out += heading(group, color);
    for (const Flag& flag : command.flags)
      if (flag.group == group) out += option_line(flag);
  }
  if (!command.examples.empty()) out += heading("Examples", color);
  for (const Example& example : command.examples)
    out += fmt::format("  {}\n      {}\n", example.line, example.meaning);
  return out;
}

std::string program_help(bool color) {
  std::string out =
      "Kvasir runs language models on this machine, and shows what each kernel does.\n\n"
      "usage: kvasir COMMAND [options]\n";
  out += heading("Commands", color);
  for (const Command& command : commands()) out += fmt::format("  {:<14}{}\n", command.name, command.summary);
  out += heading("Options", color);
  for (const Flag& flag : program_flags()) out += option_line(flag);
  out += heading("First steps", color);
  out +=
      "  kvasir run -p \"It was a cold morning\" -n 64      the built-in test model, nothing to download\n"
      "  kvasir chat -m gemma-3-1b-it-Q4_K_M.gguf         talk to a real one\n"
      "  kvasir info -m MODEL.gguf                        what it is and how much memory it needs\n\n"
      "`kvasir COMMAND --help` explains a command; `kvasir --man | man -l -` is the whole manual.\n"
      "Exit codes: 0 done, 1 failed, 2 bad usage, 3 refused, 4 bad input file, 5 no such device, 6 not "
      "enough memory.\n";
  return out;
}

}  // namespace kvasir::app
