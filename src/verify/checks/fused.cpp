// fused: attention of every pair of types, in shapes that between them have causal prompts and single rows, a
// window, ragged sequences in one step, a soft cap, pages that stay exact, an empty cache, and 1, 2, 4 and 8
// query heads a KV head.
#include <array>

#include "verify/checks/attention_case.h"
#include "verify/checks/context.h"

namespace kvasir::verify {
namespace {

struct Shape {
  std::string_view name;
  int heads_each, n_kv, window;  // query heads a KV head
  float softcap;
  int exact_first, exact_last;
  std::vector<int> lengths;
  int prompt;  // rows of the first step of each sequence; the rest follow together, one row each
};

const std::array<Shape, 4>& shapes() {
  static const std::array<Shape, 4> all = {{
      {"causal, GQA 2", 2, 1, 0, 0, 0, 0, {197}, 190},
      {"window 100, two sequences, GQA 4", 4, 1, 100, 0, 0, 0, {37, 170}, 167},
      {"soft cap 5, GQA 8", 8, 1, 0, 5, 0, 0, {131}, 128},
      {"from an empty cache, exact pages, GQA 1", 1, 2, 0, 0, 1, 1, {1, 260}, 255},
  }};
  return all;
}

RigSpec fused_spec(const Shape& shape, DType k, DType v, int head_dim, bool flash) {
  RigSpec spec;
  spec.k = k;
  spec.v = v;
  spec.head_dim = head_dim;
  spec.n_kv = shape.n_kv;
  spec.n_head = shape.heads_each * shape.n_kv;
  spec.window = shape.window;
  spec.softcap = shape.softcap;
  spec.exact_first = shape.exact_first;
  spec.exact_last = shape.exact_last;
  spec.lengths = shape.lengths;
  spec.flash = flash;
  spec.gain = 1.5;
  spec.max_rows = 256;
  spec.seed = 0xf05ed + uint64_t(k) * 131 + uint64_t(v) * 17 + uint64_t(head_dim);
  return spec;
}

void run_shape(Rig& rig, int prompt) {
  const RigSpec& spec = rig.spec();
  std::vector<int> left = spec.lengths;
  for (size_t seq = 0; seq < left.size(); ++seq) {
    const Rig::Take take{int(seq), std::min(prompt, left[seq])};
    rig.step({&take, 1});
    left[seq] -= take.n;
  }
  for (;;) {
    std::vector<Rig::Take> takes;
    for (size_t seq = 0; seq < left.size(); ++seq)
      if (left[seq]-- > 0) takes.push_back({int(seq), 1});
    if (takes.empty()) return;
    rig.step(takes);
  }
}

void one(Context& context, const Shape& shape, DType k, DType v, int head_dim, bool flash) {
  const Label label{"fused", std::string(shape.name) + (flash ? "" : ", without flash attention"), head_dim,
                    std::string(type_name(k)), std::string(type_name(v))};
  if (!formats::require(k).takes(head_dim) || !formats::require(v).takes(head_dim)) {
    not_applicable(context, label, fmt::format("head size {} is refused (dispatch checks that)", head_dim));
    return;
  }
  check(context, label, [&](decide::CheckResult& result) {
    Rig rig(context.backend(), fused_spec(shape, k, v, head_dim, flash));
    result.variant = rig.variant();
    run_shape(rig, shape.prompt);
    conclude(result, compare_outputs(rig, interesting_rows(rig.spec(), 6), context.workers()));
  });
}

}  // namespace

void check_fused(Context& context) {
  const auto keys = context.kv_types(formats::kKeys), values = context.kv_types(formats::kValues);
  for (const int head_dim : context.head_dims()) {
    size_t pair = 0;
    for (const DType k : keys)
      for (const DType v : values) {
        const bool diagonal = k == v, every = diagonal || context.options().full;
        if (!every && head_dim < 256) continue;
        ++pair;
        // A pair of its own sees one shape, another at each head size; between them all are seen with every
        // type.
        for (size_t s = 0; s < shapes().size(); ++s) {
          if (!every && s != (pair + size_t(head_dim) / 256) % shapes().size()) continue;
          one(context, shapes()[s], k, v, head_dim, true);
          // Without flash attention scores and mix are two passes that do not meet: each type once is every
          // pair.
          if (context.options().full || (diagonal && s % 2 == 1))
            one(context, shapes()[s], k, v, head_dim, false);
        }
      }
  }
}

}  // namespace kvasir::verify
