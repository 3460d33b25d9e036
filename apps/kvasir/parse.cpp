// Command line -> Args. CLI11 does the splitting; the table says what each value must be.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "flags.h"
#include "formats/format.h"
#include "options.h"

namespace kvasir::app {
namespace {

// CLI11 knows "-c" and "--ctx-size" only; "-ctk" becomes "--cache-type-k". Values are left alone, whatever
// they look like.
std::vector<std::string> rewrite_short_names(std::span<const Flag> flags,
                                             const std::vector<std::string>& words) {
  std::vector<std::string> result;
  for (size_t i = 0; i < words.size(); ++i) {
    const Flag* match = nullptr;
    for (const Flag& flag : flags) {
      const auto names = flag.spellings();
      if (!flag.positional() && std::ranges::find(names, words[i]) != names.end()) match = &flag;
    }
    if (words[i] == "--") {
      result.insert(result.end(), words.begin() + long(i), words.end());
      return result;
    }
    result.push_back(match ? "--" + std::string(match->key()) : words[i]);
    if (match && match->takes_value() && i + 1 < words.size()) result.push_back(words[++i]);
  }
  return result;
}

[[noreturn]] void bad_value(const Flag& flag, std::string_view source, std::string_view value,
                            std::string_view need) {
  const std::string hint = flag.hint.empty() ? "" : fmt::format("; {}", flag.hint);
  fail(ErrorCode::kUsage, "{} {}: must be {}{}", source, value.empty() ? "''" : value, need, hint);
}

std::string range_text(const Flag& flag, std::string_view noun) {
  if (flag.max < 1e299) return fmt::format("{} from {} to {}", noun, flag.min, flag.max);
  if (flag.min > -1e299) return fmt::format("{} of at least {}", noun, flag.min);
  return std::string(noun);
}

void check_integer(const Flag& flag, std::string_view source, std::string_view value) {
  const std::string copy(value);
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(copy.c_str(), &end, 10);
  if (copy.empty() || *end != 0 || errno != 0 || double(number) < flag.min || double(number) > flag.max)
    bad_value(flag, source, value, range_text(flag, "a whole number"));
}

void check_number(const Flag& flag, std::string_view source, const std::string& value) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != 0 || !std::isfinite(number) || number < flag.min || number > flag.max)
    bad_value(flag, source, value, range_text(flag, "a number"));
}

// One rule: a name nobody knows is a slip of the user's (2); a type that exists but has no KV role is refused
// (3).
void check_kv_type(const Flag& flag, std::string_view source, std::string_view value) {
  if (value == "auto" && flag.fallback == "auto") return;  // the decision chooses
  if (!formats::find(value))
    fail(ErrorCode::kUsage, "{} {}: no such storage type; a KV cache can hold: {}", source,
         value.empty() ? "''" : value, cache_types_text());
}

void check(const Flag& flag, std::string_view source, const std::string& value) {
  switch (flag.kind) {
    case Kind::kSwitch:
      return;
    case Kind::kText:
    case Kind::kTexts:
      return;
    case Kind::kFile:
      if (value.empty()) bad_value(flag, source, value, "the path of a file");
      return;
    case Kind::kInteger:
      return check_integer(flag, source, value);
    case Kind::kNumber:
      return check_number(flag, source, value);
    case Kind::kOnOff:
      return void(parse_on_off(value, source));
    case Kind::kChoice: {
      const auto choices = split(flag.choices, ' ');
      if (std::ranges::find(choices, value) == choices.end())
        bad_value(flag, source, value, fmt::format("one of {}", fmt::join(choices, ", ")));
      return;
    }
    case Kind::kKvType:
      return check_kv_type(flag, source, value);
    case Kind::kKvTypes:
      for (const std::string& item : split(value, ',')) check_kv_type(flag, source, item);
      return;
    case Kind::kIntegers:
      for (int64_t item : expand_integers(value, source)) check_integer(flag, source, std::to_string(item));
      return;
  }
}

std::string spelling_used(const Flag& flag, const std::vector<std::string>& words) {
  for (std::string_view name : flag.spellings())
    if (std::ranges::find(words, name) != words.end()) return std::string(name);
  return std::string(flag.spellings().back());
}

void check_extras(std::span<const Flag> flags, const std::vector<std::string>& extras,
                  const std::string& command) {
  if (extras.empty()) return;
  if (extras[0].starts_with('-') && extras[0].size() > 1) {
    std::vector<std::string_view> known;
    for (const Flag& flag : flags)
      for (std::string_view name : flag.spellings()) known.push_back(name);
    const std::string_view close = nearest(extras[0], known);
    fail(ErrorCode::kUsage, "unknown option {}{}; `{} --help` lists them all", extras[0],
         close.empty() ? "" : fmt::format(" (did you mean {}?)", close), command);
  }
  fail(ErrorCode::kUsage,
       "unexpected argument '{}'; `{} --help` shows what it takes (text with spaces needs quotes)", extras[0],
       command);
}

}  // namespace

Args parse_args(std::span<const Flag> flags, const std::vector<std::string>& words,
                std::string_view command_name) {
  const std::string command = command_name.empty() ? "kvasir" : fmt::format("kvasir {}", command_name);
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::vector<std::vector<std::string>> values(flags.size());
  std::vector<CLI::Option*> options(flags.size());
  for (size_t i = 0; i < flags.size(); ++i) {
    std::string names;
    for (std::string_view name : flags[i].spellings())  // what CLI11 cannot spell was rewritten
      if (name.starts_with("--") || name.size() == 2 || flags[i].positional())
        names += (names.empty() ? "" : ",") + std::string(name);
    options[i] = flags[i].takes_value() ? app.add_option(names, values[i])->type_size(1)->expected(1)
                                        : app.add_flag(names);
    options[i]->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->allow_extra_args(false);
  }
  std::vector<std::string> rewritten = rewrite_short_names(flags, words);
  std::ranges::reverse(rewritten);  // CLI11 takes them from the back
  try {
    app.parse(rewritten);
  } catch (const CLI::ParseError& error) {
    if (!words.empty() && words.back().starts_with('-'))
      fail(ErrorCode::kUsage, "{} needs a value; see `{} --help`", words.back(), command);
    fail(ErrorCode::kUsage, "{}; see `{} --help`", error.what(), command);
  }
  bool help = false;  // asked for help: nothing else of the line matters
  for (size_t i = 0; i < flags.size(); ++i) help |= flags[i].key() == "help" && options[i]->count() > 0;
  if (!help) check_extras(flags, app.remaining(), command);

  Args args;
  for (size_t i = 0; i < flags.size(); ++i) {
    const Flag& flag = flags[i];
    Args::Entry entry{&flag, std::string(flag.fallback), options[i]->count() > 0};
    std::string source = spelling_used(flag, words);
    if (entry.given) {
      if (!flag.takes_value())
        entry.value = "1";
      else if (flag.is_list())
        entry.value = fmt::format("{}", fmt::join(values[i], ","));
      else
        entry.value = values[i].back();
    } else if (const char* text = flag.positional() ? nullptr : std::getenv(flag.environment().c_str());
               text && *text) {
      source = flag.environment();
      entry.given = true;
      entry.value = flag.takes_value() ? text : parse_on_off(text, source) == OnOff::kOn ? "1" : "";
    }
    if (entry.given && !help) check(flag, source, entry.value);
    if (flag.positional() && !entry.given && !help)
      fail(ErrorCode::kUsage, "missing argument {} ({}); see `{} --help`", flag.names, flag.help, command);
    args.entries_.emplace(flag.key(), std::move(entry));
  }
  return args;
}

}  // namespace kvasir::app
