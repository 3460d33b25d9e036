// kvasir: one program, one sub-command a file. Errors become an exit code and one line here and nowhere else.
#include <algorithm>
#include <new>

#include "base/error.h"
#include "command.h"
#include "console.h"

namespace kvasir::app {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {run_command(),     chat_command(),       info_command(),
                                           bench_command(),   perplexity_command(), synth_command(),
                                           verify_command(),  decide_command(), devices_command(),    formats_command()};
  return all;
}

const Command* find_command(std::string_view name) {
  const auto found = std::ranges::find(commands(), name, &Command::name);
  return found == commands().end() ? nullptr : &*found;
}

const std::vector<Flag>& program_flags() {
  static const std::vector<Flag> flags = {
      {.names = "-h, --help", .help = "show this text"},
      {.names = "--version", .help = "version, commit, kernel hash and backends"},
      {.names = "--man", .help = "the manual page, as roff"},
      {.names = "--completion",
       .argument = "SHELL",
       .kind = Kind::kChoice,
       .help = "a completion script",
       .choices = "bash zsh fish"},
      {.names = "--license", .help = "licences of this program and its parts"},
  };
  return flags;
}

namespace {

[[noreturn]] void unknown_command(const std::string& word) {
  std::vector<std::string_view> names;
  for (const Command& command : commands()) names.push_back(command.name);
  const std::string_view close = nearest(word, names);
  fail(ErrorCode::kUsage, "no command '{}'{}; the commands are: {}", word,
       close.empty() ? "" : fmt::format(" (did you mean {}?)", close), fmt::join(names, " "));
}

int program_options(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i] == "--completion" && i + 1 == words.size())
      fail(ErrorCode::kUsage, "--completion needs a shell: bash, zsh or fish");
  const Args args = parse_args(program_flags(), words, "");
  if (args.on("version"))
    print(version_text());
  else if (args.on("man"))
    print(man_page());
  else if (args.given("completion"))
    print(completion_script(args.text("completion")));
  else if (args.on("license"))
    print(license_text());
  else
    print(program_help(out_has_color()));
  return 0;
}

int dispatch(std::vector<std::string> words) {
  if (words.empty() || words[0].starts_with('-')) return program_options(words);
  if (words[0] == "help") {
    if (words.size() == 1) return program_options({});
    words = {words[1], "--help"};
  }
  const Command* command = find_command(words[0]);
  if (!command) unknown_command(words[0]);
  words.erase(words.begin());
  const Args args = parse_args(command->flags, words, command->name);
  if (args.on("help")) {
    print(command_help(*command, out_has_color()));
    return 0;
  }
  return command->run(args);
}

}  // namespace
}  // namespace kvasir::app

int main(int argc, char** argv) {
  using namespace kvasir;
  try {
    const int code = app::dispatch(std::vector<std::string>(argv + 1, argv + argc));
    app::flush_out();
    return code;
  } catch (const Error& error) {
    app::note(std::string_view(error.what()));
    return int(error.code());
  } catch (const std::bad_alloc&) {
    app::note("out of memory; a smaller context (-c) or model needs less");
    return int(ErrorCode::kNoMemory);
  } catch (const std::exception& error) {
    app::note("internal error: {}", error.what());
    return int(ErrorCode::kFailed);
  }
}
