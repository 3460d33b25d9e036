// dispatch: the kernel that runs is the one asked for, on the device asked for; what cannot run is refused by
// name before anything is allocated; a key that is not finite is an error, not a stored value.
#include <cmath>

#include "base/error.h"
#include "verify/checks/context.h"
#include "verify/checks/rig.h"

namespace kvasir::verify {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// The line that the backend prints at load.
void route(Context& context, DType type, int head_dim, bool flash) {
  const std::string name(type_name(type));
  check(context, {"dispatch", flash ? "route" : "route without flash attention", head_dim, name, name},
        [&](decide::CheckResult& result) {
          RigSpec spec;
          spec.k = spec.v = type;
          spec.head_dim = head_dim;
          spec.n_head = 2;
          spec.flash = flash;
          spec.lengths = {70};
          Rig rig(context.backend(), spec);
          rig.run_all();
          result.variant = rig.variant();
          std::string line;
          for (const std::string& one : rig.describe()) line += one;
          const std::string wanted[] = {
              fmt::format("head size {}", head_dim), fmt::format("K {} V {}", name, name),
              fmt::format("{}/{}.", name, name), context.caps().isa,
              flash && !outranges_flash(context.caps(), type) ? "flash attention engaged"
                                                              : "flash attention off"};
          std::string missing;
          for (const std::string& part : wanted)
            if (!contains(line, part)) missing += (missing.empty() ? "" : ", ") + part;
          for (const float x : rig.out(0, 69))
            if (!std::isfinite(x)) missing = "finite output";
          conclude(result, missing.empty() ? 0 : 1, 0,
                   fmt::format("missing: {}; the backend says: {}", missing, line));
        });
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

void not_finite(Context& context, DType type, float bad, const char* what) {
  const std::string name(type_name(type));
  check(context, {"dispatch", fmt::format("refuses to store {}", what), 64, name, name},
        [&](decide::CheckResult& result) {
          RigSpec spec;
          spec.k = spec.v = type;
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
  for (const DType type : context.kv_types(formats::kKeys)) {
    if (!formats::require(type).has_role(formats::kValues)) continue;
    for (const int head_dim : context.head_dims())
      if (formats::require(type).takes(head_dim))
        for (const bool flash : {true, false}) route(context, type, head_dim, flash);
    if (!formats::require(type).takes(64)) continue;
    not_finite(context, type, NAN, "a NaN");
    not_finite(context, type, INFINITY, "an infinity");
    if (type != DType::f32 && type != DType::bf16) not_finite(context, type, 1e30f, "what overflows");
  }
  refusals(context);
}

}  // namespace kvasir::verify
