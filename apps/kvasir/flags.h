// The flag table: one row an option. Parsing, --help, the man page and shell completions are all made from
// it.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::app {

// What a value must look like. Lists are comma separated; integer lists take ranges "128-1024*2" and
// "0-512+128".
enum class Kind {
  kSwitch,
  kText,
  kFile,
  kInteger,
  kNumber,
  kChoice,
  kOnOff,
  kKvType,
  kIntegers,
  kKvTypes,
  kTexts
};

struct Flag {
  std::string_view names;          // "-c, --ctx-size"; a name without dashes is a positional argument
  std::string_view argument = "";  // "N"; empty for a switch
  Kind kind = Kind::kSwitch;
  std::string_view fallback = "";  // value when absent, as text; empty: none
  std::string_view group = "";
  std::string_view help = "";        // what it does, one sentence without a full stop
  double min = -1e300, max = 1e300;  // kInteger, kNumber, each of kIntegers
  std::string_view choices = "";     // kChoice: "md json csv"
  std::string_view hint = "";        // what would work, after a bad value

  bool positional() const { return names.front() != '-'; }
  bool takes_value() const { return kind != Kind::kSwitch; }
  bool is_list() const { return kind == Kind::kIntegers || kind == Kind::kKvTypes || kind == Kind::kTexts; }
  // "ctx-size"; for a positional its name.
  std::string_view key() const;
  // {"-c", "--ctx-size"}
  std::vector<std::string_view> spellings() const;
  // "KVASIR_CTX_SIZE"
  std::string environment() const;
};

// Values of one command line, checked against the table. Asking for a key that the table lacks is a program
// error.
class Args {
 public:
  bool given(std::string_view key) const;
  bool on(std::string_view key) const;  // a switch
  const std::string& text(std::string_view key) const;
  int integer(std::string_view key) const;
  int64_t big_integer(std::string_view key) const;
  double number(std::string_view key) const;
  std::vector<int> integers(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;

 private:
  friend Args parse_args(std::span<const Flag> flags, const std::vector<std::string>& words,
                         std::string_view command);
  struct Entry {
    const Flag* flag = nullptr;
    std::string value;
    bool given = false;
  };
  const Entry& entry(std::string_view key) const;
  std::map<std::string, Entry, std::less<>> entries_;
};

// `words`: the command line after the sub-command. An option that is absent is looked for in the environment
// (Flag::environment). Throws Error{kUsage} that names the option, what is wrong and what would work, and
// Error{kRefused} for a storage type that exists but cannot hold a KV cache.
Args parse_args(std::span<const Flag> flags, const std::vector<std::string>& words, std::string_view command);

// "512,1024-4096*2" -> 512 1024 2048 4096. Throws Error{kUsage}.
std::vector<int64_t> expand_integers(std::string_view text, std::string_view what);
std::vector<std::string> split(std::string_view text, char separator);
// True for the words a user may write for "on"; throws Error{kUsage} on a word that is neither on, off nor
// auto.
enum class OnOff { kOn, kOff, kAuto };
OnOff parse_on_off(std::string_view word, std::string_view what);
// The candidate nearest to `word`, or empty when none is close.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace kvasir::app
