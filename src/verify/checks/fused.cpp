// fused: attention of every pair of types, in shapes that between them have causal prompts and single rows, a
// window, ragged sequences in one step, a soft cap, pages that stay exact, an empty cache, and 1, 2, 4 and 8
// query heads a KV head.
#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

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

RigSpec fused_spec(const TcqUse& tcq, const Shape& shape, DType k, DType v, int head_dim, bool flash) {
  RigSpec spec;
  spec.tcq = tcq;
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
  spec.seed = 0xf05ed + uint64_t(head_dim);
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

// What pairs of one shape at one head size share. A type's rows are the same beside every partner (RigSpec),
// so what a pair must give follows from what each of its types left in the cache of a run with itself, which
// is read back and scored once.
class Bank {
 public:
  Bank(Context& context, const Shape& shape, int head_dim)
      : context_(context), shape_(shape), head_dim_(head_dim) {}

  struct Entry {
    std::unique_ptr<Rig> rig;  // of a type for keys only: beside float values
    std::vector<Scored> scored;
    std::vector<reference::Rows> values;
  };
  // `beside_floats`: beside values that have it read by the kernel of apart().
  const Entry& with_itself(DType type, bool flash, bool beside_floats = false) {
    Entry& entry = entries_[{type, flash, beside_floats}];
    if (!entry.rig) {
      const bool both = formats::require(type).has_role(formats::kValues);
      // The partner must not change the kernel that reads the keys.
      const bool outranged = flash && outranges_flash(context_.caps(), DType::f32);
      const DType other = outranged && !beside_floats ? DType::f16
                          : type == DType::f32        ? DType::bf16
                                                      : DType::f32;
      auto rig = run(context_, type, both && !beside_floats ? type : other, flash);
      const KeySide keys = read_keys(*rig, false, context_.workers());
      entry.scored = score_rows(*rig, interesting_rows(rig->spec(), 6), keys, false, context_.workers());
      entry.values = read_values(*rig, context_.workers());
      entry.rig = std::move(rig);
    }
    return entry;
  }

  // Keys that have another kernel beside these values than beside their own type.
  bool apart(DType k, DType v, bool flash) const {
    const backends::Caps& caps = context_.caps();
    return k != v && flash && (outranges_flash(caps, k) || outranges_flash(caps, v));
  }

  // `context`: where it runs. Both types have run with themselves before when that is a part.
  void check_pair(Context& context, DType k, DType v, bool flash) {
    const Label label{"fused", std::string(shape_.name) + (flash ? "" : ", without flash attention"),
                      head_dim_, std::string(type_name(k)), std::string(type_name(v))};
    if (!formats::require(k).takes(head_dim_) || !formats::require(v).takes(head_dim_))
      return not_applicable(context, label,
                            fmt::format("head size {} is refused (dispatch checks that)", head_dim_));
    check(context, label, [&](decide::CheckResult& result) {
      const Entry &keys = with_itself(k, flash, apart(k, v, flash)), &values = with_itself(v, flash);
      std::unique_ptr<Rig> own;
      if (k != v) own = run(context, k, v, flash);
      const Rig& rig = own ? *own : *keys.rig;
      result.variant = rig.variant();
      conclude(result, compare_outputs(rig, keys.scored, values.values, context.workers()));
    });
  }

 private:
  std::unique_ptr<Rig> run(Context& context, DType k, DType v, bool flash) {
    auto rig =
        std::make_unique<Rig>(context.backend(), fused_spec(context.tcq(), shape_, k, v, head_dim_, flash));
    run_shape(*rig, shape_.prompt);
    return rig;
  }

  Context& context_;
  const Shape& shape_;
  int head_dim_;
  std::map<std::tuple<DType, bool, bool>, Entry> entries_;
};

// Pairs that are checked in every shape at every head size, `--full` or not.
bool always(DType k, DType v) {
  return k == v || (k == DType::qjl1_256 && (v == DType::tbq3_0 || v == DType::q4_polar));
}

}  // namespace

void check_fused(Context& context) {
  const auto keys = context.kv_types(formats::kKeys), values = context.kv_types(formats::kValues);
  const bool full = context.options().full;
  for (const int head_dim : context.head_dims())
    for (size_t s = 0; s < shapes().size(); ++s) {
      Bank bank(context, shapes()[s], head_dim);
      struct Pair {
        DType k, v;
        bool flash;
      };
      std::vector<Pair> mixed;
      size_t pair = 0;
      for (const DType k : keys)
        for (const DType v : values) {
          const bool every = full || always(k, v);
          if (!every && head_dim < 256) continue;
          // Other pairs see one shape, another at each head size; between them all are seen with every type.
          if (!every && s != (++pair + size_t(head_dim) / 256) % shapes().size()) continue;
          // Without flash attention scores and mix are two passes that do not meet: each type once is every
          // pair. The last shape has all that the first has.
          for (const bool flash : {true, false}) {
            if (!flash && !full && (k != v || s == 0)) continue;
            if (k == v)
              bank.check_pair(context, k, v, flash);
            else
              mixed.push_back({k, v, flash});
          }
        }
      // Every type runs with itself on all threads; what it left is read before pairs go side by side.
      for (const Pair& p : mixed)
        if (formats::require(p.k).takes(head_dim) && formats::require(p.v).takes(head_dim)) {
          bank.with_itself(p.k, p.flash, bank.apart(p.k, p.v, p.flash));
          bank.with_itself(p.v, p.flash);
        }
      context.side_by_side(int64_t(mixed.size()), [&](Context& part, int64_t i) {
        const Pair& p = mixed[size_t(i)];
        bank.check_pair(part, p.k, p.v, p.flash);
      });
    }
}

}  // namespace kvasir::verify
