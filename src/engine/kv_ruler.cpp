#include "engine/kv_ruler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "engine/perplexity.h"
#include "formats/basis.h"
#include "formats/format.h"

namespace kvasir::engine {
namespace {

struct Collected {
  KvRulerGroup group;
  int64_t seen = 0, stride = 1;
  std::vector<float> rows;

  // Every stride-th vector of all windows, layers, heads and tokens.
  void take(std::span<const std::byte> bytes) {
    const size_t n = size_t(group.head_dim), row = n * sizeof(float);
    for (size_t at = 0; at < bytes.size(); at += row) {
      if (seen++ % stride != 0) continue;
      rows.resize(rows.size() + n);
      std::memcpy(rows.data() + rows.size() - n, bytes.data() + at, row);
    }
  }
};

Collected& group_of(std::vector<Collected>& groups, const graph::KvSpec& spec, formats::Role side) {
  for (Collected& c : groups)
    if (c.group.side == side && c.group.window == spec.window && c.group.head_dim == spec.head_dim) return c;
  Collected fresh;
  fresh.group.side = side;
  fresh.group.window = spec.window;
  fresh.group.head_dim = spec.head_dim;
  groups.push_back(fresh);
  return groups.back();
}

// Groups with the stride that leaves about max_rows of the vectors that are to come.
std::vector<Collected> plan(std::span<const graph::KvSpec> specs, int n_ctx, int n_windows, int max_rows) {
  std::vector<Collected> groups;
  for (const formats::Role side : {formats::kKeys, formats::kValues})
    for (const graph::KvSpec& spec : specs) {
      Collected& c = group_of(groups, spec, side);
      ++c.group.n_layers;
      c.seen += int64_t(n_ctx) * n_windows * spec.n_kv;  // for now: how many there will be
    }
  for (Collected& c : groups) {
    c.stride = std::max<int64_t>(1, c.seen / std::max(max_rows, 1)) | 1;  // odd: never in step with the pages
    c.seen = 0;
  }
  return groups;
}

}  // namespace

KvRulerRow measure_rows(const formats::Format& format, formats::Role side, int head_dim,
                        std::span<const float> rows, int n_threads) {
  const size_t n = size_t(head_dim), n_rows = rows.size() / n;
  std::vector<double> errors(n_rows, -1);
  TaskCounter next;
  ThreadPool(n_threads).run([&](int) {
    std::vector<float> r(n);
    std::vector<std::byte> wire(format.row_bytes(head_dim));
    for (int64_t i = next.take(); i < int64_t(n_rows); i = next.take()) {
      const float* x = rows.data() + size_t(i) * n;
      formats::to_basis(format.basis, side, x, r.data(), head_dim);
      if (format.open_page())
        for (float& value : r) value = f16_to_f32(f32_to_f16(value));
      format.encode(r.data(), wire.data(), head_dim);
      format.decode(wire.data(), r.data(), head_dim);
      formats::from_basis(format.basis, side, r.data(), r.data(), head_dim);
      double error = 0, energy = 0;
      for (size_t j = 0; j < n; ++j) {
        error += (double(x[j]) - r[j]) * (double(x[j]) - r[j]);
        energy += double(x[j]) * x[j];
      }
      if (energy > 0) errors[size_t(i)] = error / energy;
    }
  });
  KvRulerRow row;
  row.type = format.type;
  row.bits_per_value = format.bits_per_value(head_dim);
  int64_t counted = 0;
  for (double error : errors) {
    if (error < 0) continue;  // a vector of zeros has no direction to miss
    row.nmse += error;
    row.worst = std::max(row.worst, error);
    ++counted;
  }
  row.nmse = counted > 0 ? row.nmse / double(counted) : 0;
  row.bits_lost = row.nmse > 0 ? row.bits_per_value - 0.5 * std::log2(1 / row.nmse)
                               : std::numeric_limits<double>::quiet_NaN();
  return row;
}

std::vector<KvRulerGroup> kv_ruler(const std::shared_ptr<Model>& model, std::span<const Token> tokens,
                                   const KvRulerOptions& options) {
  SessionOptions session_options;
  session_options.n_ctx = options.n_ctx;
  session_options.kv = {DType::f32, DType::f32, {}, {}};
  Session session(model, session_options);
  const int n_windows = perplexity_windows(session, tokens, options.n_ctx, options.max_chunks);
  const std::span<const graph::KvSpec> specs = session.cache_specs();
  std::vector<Collected> collected = plan(specs, options.n_ctx, n_windows, options.max_rows);
  for (int w = 0; w < n_windows; ++w) {
    std::vector<Token> window(tokens.begin() + long(w) * options.n_ctx,
                              tokens.begin() + long(w + 1) * options.n_ctx);
    window[0] = model->tokenizer().bos();
    session.clear(0);
    session.append(0, window, Want::kNone, nullptr);
    session.read_pages(0, [&](const StateRecord& page, std::span<const std::byte> rows) {
      group_of(collected, specs[size_t(page.kv)], page.keys() ? formats::kKeys : formats::kValues).take(rows);
    });
    if (options.on_window) options.on_window(w + 1, n_windows);
  }
  const backends::Caps caps = model->backend().caps();
  std::vector<KvRulerGroup> groups;
  for (Collected& c : collected) {
    c.group.n_rows = int64_t(c.rows.size()) / c.group.head_dim;
    for (const formats::Format& format : formats::all())
      if (format.has_role(c.group.side) && format.takes(c.group.head_dim) &&
          std::ranges::count(caps.kv_types, format.type))
        c.group.rows.push_back(
            measure_rows(format, c.group.side, c.group.head_dim, c.rows, model->n_threads()));
    groups.push_back(std::move(c.group));
  }
  return groups;
}

}  // namespace kvasir::engine
