// dispatch: the kernel that runs is the one asked for, on the device asked for; what cannot run is refused by
// name before anything is allocated; a key that is not finite is an error, not a stored value.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "verify/checks/context.h"
#include "verify/checks/rig.h"

namespace kvasir::verify {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// A real graph through compile and submit, and what the backend says of the kernel it took.
struct Route {
  std::string name;
  DType k{}, v{};
  bool other_residual = false;  // the residual bits of stored keys are turned before the last row reads them
};

// What is wrong with the line that the backend prints at load; empty: nothing.
std::string wrong_line(const Context& context, const Rig& rig, const Route& route) {
  std::string line;
  for (const std::string& one : rig.describe()) line += one;
  const RigSpec& spec = rig.spec();
  const backends::Caps& caps = context.caps();
  const bool flash = spec.flash && ((!outranges_flash(caps, route.k) && !outranges_flash(caps, route.v)) ||
                                    in_terms(caps, spec, true));
  const std::string wanted[] = {fmt::format("head size {}", spec.head_dim),
                                fmt::format("K {} V {}", type_name(route.k), type_name(route.v)),
                                fmt::format("{}/{}.", type_name(route.k), type_name(route.v)), context.caps().isa,
                                flash ? "flash attention engaged" : "flash attention off"};
  std::string missing;
  for (const std::string& part : wanted)
    if (!contains(line, part)) missing += (missing.empty() ? "" : ", ") + part;
  return missing.empty() ? "" : fmt::format("missing: {}; the backend says: {}", missing, line);
}

std::vector<float> last_row(Rig& rig, bool turn_residuals) {
  constexpr int kTokens = 70;
  Rig::Take take{0, kTokens - 1};
  rig.step({&take, 1});
  if (turn_residuals)
    rig.edit_page(0, 0, 0, backends::PagePart::kKeys, [&](std::span<std::byte> rows) {
      // Blocks of 82 bytes, of which bit 0 of byte 66 is the residual.
      for (size_t at = 66; at < rows.size(); at += 82) rows[at] ^= std::byte(1);
    });
  take.n = 1;
  rig.step({&take, 1});
  const auto out = rig.out(0, kTokens - 1);
  return {out.begin(), out.end()};
}

void check_route(Context& context, const Route& route, int head_dim, bool flash) {
  check(context,
        {"dispatch", "route " + route.name + (flash ? "" : " without flash attention"), head_dim,
         std::string(type_name(route.k)), std::string(type_name(route.v))},
        [&](decide::CheckResult& result) {
          RigSpec spec;
          spec.tcq = context.tcq();
          spec.k = route.k;
          spec.v = route.v;
          spec.head_dim = head_dim;
          spec.n_head = 2;
          spec.flash = flash;
          spec.lengths = {70};
          spec.max_rows = 70;
          Rig rig(context.backend(), spec);
          const std::vector<float> out = last_row(rig, route.other_residual);
          result.variant = rig.variant();
          std::string wrong = wrong_line(context, rig, route);
          for (const float x : out)
            if (!std::isfinite(x)) wrong = "an output is not finite";
          if (route.other_residual) {
            Rig same(context.backend(), spec);
            if (last_row(same, false) != out) wrong = "the residual bit reaches attention, which leaves it out";
          }
          conclude(result, wrong.empty() ? 0 : 1, 0, wrong);
        });
}

// The nine routes that published gates name, then one for every other type. Queries meet q4_polar keys transformed
// (once a head) on every route; beside f16 values nothing else is.
std::vector<Route> routes(const Context& context) {
  const auto keys = context.kv_types(formats::kKeys);
  const auto has = [&](DType type) { return std::ranges::find(keys, type) != keys.end(); };
  const DType plain = outranges_flash(context.caps(), DType::f32) ? DType::f16 : DType::f32;
  std::vector<Route> list;
  const auto add = [&](std::string name, DType k, DType v, bool other = false) {
    if (has(k) && has(v)) list.push_back({std::move(name), k, v, other});
  };
  add("qjl", DType::qjl1_256, plain);
  for (const DType type : {DType::tbq3_0, DType::tbq4_0, DType::tbq3_tcq, DType::q4_polar})
    add(std::string(check_name(type)), type, type);
  add("polar_residual", DType::q4_polar, DType::q4_polar, true);
  add("polar_preht", DType::q4_polar, plain);
  add("polar_preht_residual", DType::q4_polar, plain, true);
  add("fused qjl+tbq", DType::qjl1_256, DType::tbq3_0);
  for (const DType type : keys)
    if (formats::require(type).has_role(formats::kValues) && check_name(type) == type_name(type))
      add(std::string(type_name(type)), type, type);
  return list;
}

// Compiles without memory for a cache: a refusal must come before any is needed.
void expect_refusal(decide::CheckResult& result, backends::Backend& backend, graph::KvSpec kv,
                    std::initializer_list<std::string> words) {
  graph::Graph graph;
  graph.values = {{"q", kv.head_dim, graph::RowSet::kAll}, {"out", kv.head_dim, graph::RowSet::kAll}};
  graph.kv = {kv};
  graph::Op op;
  op.kind = graph::OpKind::attention;
  op.layer = 7;
  op.in[0] = 0;
  op.out = 1;
  op.n_head = 1;
  op.head_dim = kv.head_dim;
  op.kv = 0;
  graph.ops = {op};
  backends::KvBuffers buffers;
  buffers.data = buffers.exact = {nullptr};
  buffers.n_pages = buffers.n_exact = {0};
  std::string message = "nothing was refused";
  try {
    backend.upload(graph, {}, {});
    backend.compile(graph, {}, buffers, 1);
  } catch (const Error& error) {
    message = error.what();
    bool good = error.code() == ErrorCode::kRefused && contains(message, "layer 7");
    for (const std::string& word : words) good = good && contains(message, word);
    if (good) return conclude(result, 0, 0, "");
  }
  conclude(result, 1, 0, "expected a refusal with required, supported and missing; got: " + message);
}

void refusals(Context& context) {
  for (const DType type : context.kv_types(formats::kKeys))
    for (const int head_dim : {64, 80, 96, 112, 576}) {
      if (head_dim == 64 && formats::require(type).takes(64)) continue;
      const std::string name(type_name(type));
      check(context, {"dispatch", "refuses this head size", head_dim, name, name},
            [&](decide::CheckResult& result) {
              expect_refusal(result, context.backend(), {0, head_dim, 1, 0, type, type},
                             {"required", "supported", "missing", fmt::format("head size {}", head_dim)});
            });
    }
  // Types that this build can store but this backend cannot attend over, and types for weights only.
  for (const formats::Format& format : formats::all()) {
    bool known = false;
    for (const DType type : context.caps().kv_types) known = known || type == format.type;
    if (known || !format.takes(256)) continue;
    const std::string name(format.name);
    check(context, {"dispatch", "refuses this type", 256, name, name}, [&](decide::CheckResult& result) {
      expect_refusal(result, context.backend(), {0, 256, 1, 0, format.type, format.type},
                     {"required", "supported", "missing", name});
    });
  }
}

void not_finite(Context& context, DType type, int head_dim, float bad, const char* what) {
  const DType v = formats::require(type).has_role(formats::kValues) ? type : DType::f16;
  check(context,
        {"dispatch", fmt::format("refuses to store {}", what), head_dim, std::string(type_name(type)),
         std::string(type_name(v))},
        [&](decide::CheckResult& result) {
          RigSpec spec;
          spec.tcq = context.tcq();
          spec.k = type;
          spec.v = v;
          spec.head_dim = head_dim;
          spec.lengths = {40};
          spec.spoiled = 33;
          spec.spoil = bad;
          Rig rig(context.backend(), spec);
          result.variant = rig.variant();
          std::string message = "nothing was refused";
          try {
            rig.run_all();
          } catch (const Error& error) {
            message = error.what();
            if (contains(message, "layer 0") && contains(message, "token 33"))
              return conclude(result, 0, 0, "");
          }
          conclude(result, 1, 0, "expected an error that names layer 0 and token 33; got: " + message);
        });
}

}  // namespace

void check_dispatch(Context& context) {
  for (const Route& route : routes(context))
    for (const int head_dim : context.head_dims())
      for (const bool flash : {true, false})
        if (formats::require(route.k).takes(head_dim) && formats::require(route.v).takes(head_dim))
          check_route(context, route, head_dim, flash);
        else
          not_applicable(context,
                         {"dispatch", "route " + route.name + (flash ? "" : " without flash attention"), head_dim,
                          std::string(type_name(route.k)), std::string(type_name(route.v))},
                         fmt::format("head size {} is refused (a check of its own)", head_dim));
  for (const DType type : context.kv_types(formats::kKeys))
    for (const int head_dim : context.head_dims()) {
      if (!formats::require(type).takes(head_dim)) continue;
      not_finite(context, type, head_dim, NAN, "a NaN");
      not_finite(context, type, head_dim, INFINITY, "an infinity");
      if (type != DType::f32 && type != DType::bf16)
        not_finite(context, type, head_dim, 1e30f, "what overflows");
    }
  refusals(context);
}

}  // namespace kvasir::verify
