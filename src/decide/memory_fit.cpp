#include "decide/memory_fit.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "base/error.h"

namespace kvasir::decide {

uint64_t parse_size(std::string_view text, std::string_view what) {
  struct Unit {
    std::string_view name;
    uint64_t bytes;
  };
  static constexpr std::array<Unit, 9> kUnits = {{{"B", 1},
                                                  {"KB", 1000},
                                                  {"MB", 1000000},
                                                  {"GB", 1000000000},
                                                  {"TB", 1000000000000},
                                                  {"KiB", uint64_t(1) << 10},
                                                  {"MiB", uint64_t(1) << 20},
                                                  {"GiB", uint64_t(1) << 30},
                                                  {"TiB", uint64_t(1) << 40}}};
  const auto bad = [&] [[noreturn]] () {
    fail(ErrorCode::kUsage, "{} {}: must be a whole number with a unit, for example 512MiB, 8GiB, 8GB or 0",
         what, text.empty() ? "''" : text);
  };
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(rest, size_t(text.data() + text.size() - rest));
  if (error != std::errc() || rest == text.data()) bad();
  if (unit.empty() && number == 0) return 0;
  const auto found = std::ranges::find(kUnits, unit, &Unit::name);
  if (found == kUnits.end() || number > std::numeric_limits<uint64_t>::max() / found->bytes) bad();
  return number * found->bytes;
}

MemoryNeed memory_need(const ModelGeometry& g, const KvTypes& types, int n_ctx, int n_ubatch, bool host) {
  MemoryNeed need;
  need.weights = host ? g.file_bytes - g.table_bytes : g.file_bytes;
  need.kv = kv_bytes(g, types, n_ctx, n_ubatch);
  const uint64_t rows = uint64_t(std::min(n_ubatch, n_ctx));
  uint64_t heads = 0, exact = 0;
  for (const LayerClass& c : g.classes)
    heads = std::max(heads, uint64_t(2 * c.n_head + 4 * c.n_kv) * uint64_t(c.head_dim));
  for (const LayerClass& c : g.classes)  // f16 rows of the pages a step encodes
    exact = std::max(exact, uint64_t(c.n_kv) * uint64_t(c.head_dim) * 4);
  // Residual streams, projections, feed-forward and per-layer inputs as f32, with their int8 copies (5 bytes
  // a value).
  const uint64_t width =
      4 * uint64_t(g.n_embd) + heads + uint64_t(g.n_ff) + uint64_t(g.n_layer) * uint64_t(g.ple_dim);
  need.scratch =
      rows * (width * 5 + exact) + uint64_t(std::min<uint64_t>(rows, 16)) * uint64_t(g.n_vocab) * 4;
  return need;
}

int fitting_micro_batch(bool host, std::optional<uint64_t> budget,
                        const std::function<MemoryNeed(int n_ubatch)>& need) {
  const int most = default_micro_batch(host);
  if (most > kHostMicroBatch && budget && need(most).total() > *budget) return kHostMicroBatch;
  return most;
}

int largest_context(const ModelGeometry& g, const KvTypes& types, uint64_t budget, int limit, int n_ubatch,
                    bool host) {
  int fits = 0, over = limit + 1;  // needs grow with the context
  while (over - fits > 1) {
    const int middle = fits + (over - fits) / 2;
    (memory_need(g, types, middle, n_ubatch, host).total() <= budget ? fits : over) = middle;
  }
  return fits;
}

std::string context_refusal(int n_ctx, uint64_t available, std::string_view where,
                            const std::function<MemoryNeed(int n_ctx)>& need) {
  const MemoryNeed all = need(n_ctx);
  if (all.total() <= available) return {};
  int fits = 0, over = n_ctx;
  while (over - fits > 1) {
    const int middle = fits + (over - fits) / 2;
    (need(middle).total() <= available ? fits : over) = middle;
  }
  if (fits >= 64) fits -= fits % 64;
  std::string parts;
  const auto add = [&](uint64_t bytes, std::string_view what) {
    if (bytes > 0) parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", bytes_text(bytes), what);
  };
  add(all.weights, "of weights");
  add(all.kv, "of KV cache");
  add(all.scratch, "to work in");
  return fmt::format("a context of {} needs {} ({}), but {} of {} can be had; {}", n_ctx,
                     bytes_text(all.total()), parts, bytes_text(available), where,
                     fits > 0 ? fmt::format("-c {} fits, or choose smaller types with -ctk and -ctv", fits)
                              : "no context fits: use a smaller model or one with fewer bits a weight");
}

uint64_t usable(uint64_t total, uint64_t reserve) { return total > reserve ? total - reserve : 0; }

std::string bytes_text(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value,
                                 value < 10    ? 2
                                 : value < 100 ? 1
                                               : 0,
                                 kUnits[unit]);
}

}  // namespace kvasir::decide
