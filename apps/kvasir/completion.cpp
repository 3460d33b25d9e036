#include "base/error.h"
#include "command.h"

namespace kvasir::app {
namespace {

bool wants_file(const Flag& flag) { return flag.kind == Kind::kFile; }

std::string command_names() {
  std::string out;
  for (const Command& command : commands()) out += (out.empty() ? "" : " ") + std::string(command.name);
  return out;
}

std::string all_spellings(const std::vector<Flag>& flags) {
  std::string out;
  for (const Flag& flag : flags)
    if (!flag.positional())
      for (std::string_view name : flag.spellings()) out += (out.empty() ? "" : " ") + std::string(name);
  return out;
}

// "    run:-m|run:--model)" and what completes there.
std::string bash_value_case(const Command& command, const Flag& flag) {
  const auto values = known_values(flag);
  if (flag.positional() || (values.empty() && !wants_file(flag))) return "";
  std::string pattern;
  for (std::string_view name : flag.spellings())
    pattern += fmt::format("{}{}:{}", pattern.empty() ? "" : "|", command.name, name);
  if (wants_file(flag))
    return fmt::format("    {}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", pattern);
  return fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$word\")); return ;;\n", pattern,
                     fmt::join(values, " "));
}

std::string bash_script() {
  std::string out =
      "# bash completion for kvasir\n_kvasir() {\n  local word=\"${COMP_WORDS[COMP_CWORD]}\"\n"
      "  local previous=\"${COMP_WORDS[COMP_CWORD-1]}\"\n  local command=\"${COMP_WORDS[1]}\"\n"
      "  if [[ $COMP_CWORD -eq 1 ]]; then\n";
  out += fmt::format("    COMPREPLY=($(compgen -W '{} {}' -- \"$word\"))\n    return\n  fi\n",
                     command_names(), all_spellings(program_flags()));
  out += "  case \"$command:$previous\" in\n";
  for (const Flag& flag : program_flags())
    if (flag.kind == Kind::kChoice)
      out += fmt::format("    {}:*) COMPREPLY=($(compgen -W '{}' -- \"$word\")); return ;;\n", flag.names,
                         flag.choices);
  for (const Command& command : commands())
    for (const Flag& flag : command.flags) out += bash_value_case(command, flag);
  out += "  esac\n  case \"$command\" in\n";
  for (const Command& command : commands())
    out += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$word\") $(compgen -f -- \"$word\")) ;;\n",
                       command.name, all_spellings(command.flags));
  return out + "  esac\n}\ncomplete -o filenames -F _kvasir kvasir\n";
}

// Inside zsh's single-quoted '[help]' these characters end or split the text.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\')
      out += std::string("\\") + c;
    else
      out += c;
  }
  return out;
}

std::string zsh_action(const Flag& flag) {
  const auto values = known_values(flag);
  if (wants_file(flag)) return ":" + std::string(flag.argument) + ":_files";
  if (!values.empty()) return fmt::format(":{}:({})", flag.argument, fmt::join(values, " "));
  return flag.takes_value() ? fmt::format(":{}: ", flag.argument) : "";
}

std::string zsh_arguments(const std::vector<Flag>& flags) {
  std::string out = "_arguments";
  for (const Flag& flag : flags) {
    if (flag.positional()) {
      out += fmt::format(" \\\n        ':{}:_files'", zsh_text(flag.names));
      continue;
    }
    for (std::string_view name : flag.spellings())
      out += fmt::format(" \\\n        '{}[{}]{}'", name, zsh_text(flag.help), zsh_action(flag));
  }
  return out;
}

std::string zsh_script() {
  std::string out =
      "#compdef kvasir\n_kvasir() {\n  if (( CURRENT == 2 )); then\n    local -a commands\n    commands=(\n";
  for (const Command& command : commands())
    out += fmt::format("      '{}:{}'\n", command.name, zsh_text(command.summary));
  out +=
      "    )\n    _describe command commands\n    " + zsh_arguments(program_flags()) + "\n    return\n  fi\n";
  out += "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n";
  for (const Command& command : commands())
    out += fmt::format("    {})\n      {} ;;\n", command.name, zsh_arguments(command.flags));
  return out + "  esac\n}\n_kvasir \"$@\"\n";
}

std::string fish_text(std::string_view text) {
  std::string out;
  for (char c : text) out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out;
}

std::string fish_option(std::string_view condition, const Flag& flag) {
  if (flag.positional()) return "";
  std::string line = fmt::format("complete -c kvasir -n '{}'", condition);
  for (std::string_view name : flag.spellings()) {
    if (name.starts_with("--"))
      line += fmt::format(" -l {}", name.substr(2));
    else
      line += fmt::format(" -{} {}", name.size() == 2 ? "s" : "o", name.substr(1));
  }
  const auto values = known_values(flag);
  if (wants_file(flag))
    line += " -r -F";
  else if (!values.empty())
    line += fmt::format(" -x -a '{}'", fmt::join(values, " "));
  else if (flag.takes_value())
    line += " -x";
  return line + fmt::format(" -d '{}'\n", fish_text(flag.help));
}

std::string fish_script() {
  std::string out = "# fish completion for kvasir\n";
  for (const Flag& flag : program_flags()) out += fish_option("__fish_use_subcommand", flag);
  for (const Command& command : commands()) {
    out += fmt::format("complete -c kvasir -f -n __fish_use_subcommand -a {} -d '{}'\n", command.name,
                       fish_text(command.summary));
    for (const Flag& flag : command.flags)
      out += fish_option(fmt::format("__fish_seen_subcommand_from {}", command.name), flag);
  }
  return out;
}

}  // namespace

std::string completion_script(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  if (shell == "fish") return fish_script();
  fail(ErrorCode::kUsage, "--completion {}: must be one of bash, zsh, fish", shell);
}

}  // namespace kvasir::app
