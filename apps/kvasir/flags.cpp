#include "flags.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "base/error.h"

namespace kvasir::app {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (;;) {
    const size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

std::vector<std::string_view> Flag::spellings() const {
  std::vector<std::string_view> result;
  size_t start = 0;
  while (start < names.size()) {
    const size_t end = std::min(names.find(", ", start), names.size());
    result.push_back(names.substr(start, end - start));
    start = end + 2;
  }
  return result;
}

std::string_view Flag::key() const {
  std::string_view last = spellings().back();
  while (last.front() == '-') last.remove_prefix(1);
  return last;
}

std::string Flag::environment() const {
  std::string name = "KVASIR_";
  for (char c : key()) name += c == '-' ? '_' : char(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

namespace {

int64_t parse_integer(std::string_view text, std::string_view what) {
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(copy.c_str(), &end, 10);
  if (copy.empty() || *end != 0 || errno != 0)
    fail(ErrorCode::kUsage, "{}: '{}' is not a whole number", what, text);
  return value;
}

// "first-last+step" and "first-last*factor"; a leading minus belongs to the number.
void expand_item(std::string_view item, std::string_view what, std::vector<int64_t>& out) {
  const size_t dash = item.find('-', 1);
  if (dash == std::string_view::npos) {
    out.push_back(parse_integer(item, what));
    return;
  }
  const size_t op = item.find_first_of("+*", dash);
  const int64_t first = parse_integer(item.substr(0, dash), what);
  const int64_t last = parse_integer(item.substr(dash + 1, op == item.npos ? op : op - dash - 1), what);
  const int64_t step = op == item.npos ? 1 : parse_integer(item.substr(op + 1), what);
  const bool multiply = op != item.npos && item[op] == '*';
  if (first > last || step < (multiply ? 2 : 1) || (multiply && first < 1))
    fail(ErrorCode::kUsage, "{}: the range '{}' does not advance; write FIRST-LAST+STEP or FIRST-LAST*FACTOR",
         what, item);
  for (int64_t value = first; value <= last; value = multiply ? value * step : value + step) {
    out.push_back(value);
    if (out.size() > 1000)
      fail(ErrorCode::kUsage, "{}: the range '{}' has more than 1000 values", what, item);
  }
}

}  // namespace

std::vector<int64_t> expand_integers(std::string_view text, std::string_view what) {
  std::vector<int64_t> values;
  for (const std::string& item : split(text, ',')) expand_item(item, what, values);
  return values;
}

OnOff parse_on_off(std::string_view word, std::string_view what) {
  static constexpr std::array<std::string_view, 5> kOnWords{"on", "1", "true", "yes", "enabled"};
  static constexpr std::array<std::string_view, 5> kOffWords{"off", "0", "false", "no", "disabled"};
  if (std::ranges::find(kOnWords, word) != kOnWords.end()) return OnOff::kOn;
  if (std::ranges::find(kOffWords, word) != kOffWords.end()) return OnOff::kOff;
  if (word == "auto") return OnOff::kAuto;
  fail(ErrorCode::kUsage, "{}: '{}' is none of on, off, auto", what, word);
}

namespace {

// Insertions, deletions, changes and swaps of neighbours that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] =
          std::min({cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]), cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  size_t best_distance = word.size() <= 5 ? 2 : 3;  // further away is no likely slip of the finger
  for (std::string_view candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < std::min(best_distance, candidate.size() - 1)) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

const Args::Entry& Args::entry(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end())
    fail(ErrorCode::kFailed, "program error: no option '{}' in the flag table", key);
  return found->second;
}

bool Args::given(std::string_view key) const { return entry(key).given; }
bool Args::on(std::string_view key) const { return entry(key).value == "1"; }
const std::string& Args::text(std::string_view key) const { return entry(key).value; }
int64_t Args::big_integer(std::string_view key) const { return parse_integer(entry(key).value, key); }
int Args::integer(std::string_view key) const { return int(big_integer(key)); }
double Args::number(std::string_view key) const { return std::strtod(entry(key).value.c_str(), nullptr); }

std::vector<int> Args::integers(std::string_view key) const {
  std::vector<int> values;
  if (entry(key).value.empty()) return values;
  for (int64_t value : expand_integers(entry(key).value, key)) values.push_back(int(value));
  return values;
}

std::vector<std::string> Args::texts(std::string_view key) const {
  return entry(key).value.empty() ? std::vector<std::string>() : split(entry(key).value, ',');
}

}  // namespace kvasir::app
