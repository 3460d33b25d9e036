// A sub-command as data, and the texts made from it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "flags.h"

namespace kvasir::app {

struct Example {
  std::string_view line, meaning;
};

struct Command {
  std::string_view name;
  std::string_view summary;      // one line, no full stop
  std::string_view usage;        // after "kvasir NAME"
  std::string_view description;  // paragraphs separated by a blank line
  std::vector<Flag> flags;
  std::vector<Example> examples;
  int (*run)(const Args& args) = nullptr;
};

// Every sub-command of this build, in the order of `kvasir --help`.
const std::vector<Command>& commands();
const Command* find_command(std::string_view name);
// Options of the bare program: --help --version --man --completion --license.
const std::vector<Flag>& program_flags();

Command run_command();
Command chat_command();
Command info_command();
Command bench_command();
Command perplexity_command();
Command synth_command();
Command verify_command();
Command decide_command();
Command devices_command();
Command formats_command();

// Values an option may take, for completions and help: choices, storage types, on/off/auto; empty when open.
std::vector<std::string> known_values(const Flag& flag);

std::string program_help(bool color);
std::string command_help(const Command& command, bool color);
std::string version_text();
std::string license_text();
// roff source of kvasir(1).
std::string man_page();
// `shell`: bash, zsh or fish. Throws Error{kUsage}.
std::string completion_script(std::string_view shell);

}  // namespace kvasir::app
