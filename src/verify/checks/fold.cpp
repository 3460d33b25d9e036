// fold: the same bits however work is cut (rows a step, threads, where exact pages lie), and the merge of
// split keys.
#include <cstring>
#include <utility>

#include "verify/checks/attention_case.h"
#include "verify/checks/context.h"

namespace kvasir::verify {
namespace {

constexpr int kPrompt = 320, kRows = 24;  // two chunks of 256 keys
constexpr int kLong = 2334;  // more than eight chunks: chunks merge into spans, spans into the result

// What values are kept in beside keys of a type: the type itself, or f16 where it has keys alone.
DType partner(DType type) { return formats::require(type).has_role(formats::kValues) ? type : DType::f16; }

RigSpec fold_spec(const Context& context, DType type, int head_dim) {
  RigSpec spec;
  spec.tcq = context.tcq();
  spec.k = type;
  spec.v = partner(type);
  spec.head_dim = head_dim;
  spec.n_kv = 1;
  spec.n_head = 4;
  spec.lengths = {kPrompt + kRows};
  spec.max_rows = kPrompt;
  spec.exact_first = spec.exact_last = 1;
  spec.seed = 0xf01d + uint64_t(type) + uint64_t(head_dim);
  return spec;
}

// Rows of the prompt `prompt` a step, then `rows` a step.
void run_rest(Rig& rig, int rows) {
  for (int left = kRows; left > 0; left -= rows) {
    const Rig::Take take{0, std::min(rows, left)};
    rig.step({&take, 1});
  }
}
void run(Rig& rig, int prompt, int rows) {
  for (int left = kPrompt; left > 0; left -= prompt) {
    const Rig::Take take{0, std::min(prompt, left)};
    rig.step({&take, 1});
  }
  run_rest(rig, rows);
}

void equal(decide::CheckResult& result, const Rig& rig, const std::vector<float>& base) {
  int64_t different = 0;
  double seen = 0;
  const std::vector<float>& out = rig.outputs();
  if (out.size() != base.size()) fail(ErrorCode::kFailed, "{} values for {}", out.size(), base.size());
  if (std::memcmp(out.data(), base.data(), out.size() * sizeof(float)) != 0)
    for (size_t i = 0; i < out.size(); ++i) {
      different += std::memcmp(&out[i], &base[i], sizeof(float)) != 0;
      seen = std::max(seen, double(std::fabs(out[i] - base[i])));
    }
  conclude(result, double(different), 0, fmt::format("{} of {} values differ", different, out.size()));
  result.max_diff = seen;
}

// Another cut than that of `base`: the same bits, or right by itself.
void equal_cut(Context& context, decide::CheckResult& result, const Rig& rig,
               const std::vector<float>& base) {
  if (context.same_bits_by_step()) return equal(result, rig, base);
  conclude(result, compare_outputs(rig, interesting_rows(rig.spec(), 4), context.workers()));
}

// Returns the outputs of the prompt in one step and single rows; empty when there are none.
std::vector<float> fold_type(Context& context, DType type, int head_dim) {
  const std::string name(type_name(type));
  const auto label = [&](std::string what) {
    return Label{"fold", std::move(what), head_dim, name, std::string(type_name(partner(type)))};
  };
  if (!formats::require(type).takes(head_dim)) {
    not_applicable(context, label("rows a step"),
                   fmt::format("head size {} is refused (dispatch checks that)", head_dim));
    return {};
  }
  const RigSpec spec = fold_spec(context, type, head_dim);
  std::unique_ptr<Rig> rig;
  std::vector<float> base;
  check(context, label("1 row a step"), [&](decide::CheckResult& result) {
    rig = std::make_unique<Rig>(context.backend(), spec);
    result.variant = rig->variant();
    run(*rig, kPrompt, 1);
    base = rig->outputs();
    conclude(result, compare_outputs(*rig, interesting_rows(spec, 4), context.workers()));
  });
  if (base.empty()) return {};
  // The rows after the prompt once more: what the prompt left in the cache is the same for all these cuts.
  for (const int rows : {2, 3, 4, 8, kRows})
    check(context, label(fmt::format("{} rows a step", rows)), [&](decide::CheckResult& result) {
      result.variant = rig->variant();
      rig->rewind(kPrompt);
      run_rest(*rig, rows);
      equal_cut(context, result, *rig, base);
    });
  for (const int prompt : {64, 100})
    check(context, label(fmt::format("prompt in parts of {}", prompt)), [&](decide::CheckResult& result) {
      result.variant = rig->variant();
      rig->rewind(0);
      run(*rig, prompt, 8);
      equal_cut(context, result, *rig, base);
    });
  check(context, label("exact pages in the step's own memory"), [&](decide::CheckResult& result) {
    RigSpec tight = spec;
    tight.tight = true;
    Rig own(context.backend(), tight);
    result.variant = own.variant();
    run(own, kPrompt, 1);
    equal(result, own, base);
  });
  return base;
}

// Teams of several sizes against one thread, which takes the prompt in one step. `base`: what that gave;
// empty when it has not run.
void threads_of_type(Context& context, DType type, int head_dim, std::vector<float> base) {
  if (!formats::require(type).takes(head_dim)) return;  // said above
  const RigSpec spec = fold_spec(context, type, head_dim);
  const bool shared = context.caps().name == "cpu";
  std::vector<int> teams = {1, 2, 3};
  if (shared && context.options().n_threads > 3) teams.push_back(context.options().n_threads);
  for (const int threads : teams) {
    const Label label{"fold", fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"), head_dim,
                      std::string(type_name(spec.k)), std::string(type_name(spec.v))};
    if (!shared) {
      not_applicable(context, label, "work on this device is not shared among threads of the host");
      continue;
    }
    check(context, label, [&](decide::CheckResult& result) {
      if (base.empty()) {
        Rig one(context.backend(1), spec);
        run(one, kPrompt, 1);
        base = one.outputs();
      }
      Rig rig(context.backend(threads), spec);
      result.variant = rig.variant();
      run(rig, 160, 1);
      equal_cut(context, result, rig, base);
    });
  }
}

// A work item folds as many tiles of 64 keys as a row sees: 1, 2, 3, 4 and 8 of them, the last one partly filled.
void tiles_of_type(Context& context, DType type, int head_dim) {
  if (!formats::require(type).takes(head_dim)) return;  // said above
  const int tiles[] = {1, 2, 3, 4, 8};
  RigSpec spec = fold_spec(context, type, head_dim);
  spec.n_head = 2;
  spec.lengths = {8 * 64 - 5};
  spec.max_rows = 256;
  spec.exact_first = spec.exact_last = 0;
  spec.seed += 0x711e;
  std::unique_ptr<Rig> rig;
  KeySide keys;
  std::vector<reference::Rows> values;
  for (const int n : tiles)
    check(context,
          {"fold", fmt::format("{} tile{}", n, n == 1 ? "" : "s"), head_dim, std::string(type_name(spec.k)),
           std::string(type_name(spec.v))},
          [&](decide::CheckResult& result) {
            if (!rig) {
              rig = std::make_unique<Rig>(context.backend(), spec);
              for (int at = 0; const int one : tiles) {  // the row that is compared is a step of its own
                for (const int end : {one * 64 - 6, one * 64 - 5})
                  for (; at < end;) {
                    const Rig::Take take{0, std::min(256, end - at)};
                    rig->step({&take, 1});
                    at += take.n;
                  }
              }
              keys = read_keys(*rig, false, context.workers());
              values = read_values(*rig, context.workers());
            }
            result.variant = rig->variant();
            const Place place{0, n * 64 - 6};
            conclude(result, compare_outputs(*rig, score_rows(*rig, {&place, 1}, keys, false, context.workers()),
                                             values, context.workers()));
          });
}

void merge_type(Context& context, DType type, int head_dim) {
  const std::string name(type_name(type));
  check(
      context,
      {"fold", fmt::format("merge of {} keys", kLong), head_dim, name, std::string(type_name(partner(type)))},
      [&](decide::CheckResult& result) {
        RigSpec spec = fold_spec(context, type, head_dim);
        spec.n_head = 2;
        spec.lengths = {kLong};
        spec.max_rows = 512;
        spec.exact_first = spec.exact_last = 0;
        Rig rig(context.backend(), spec);
        result.variant = rig.variant();
        for (int left = kLong; left > 0;) {
          const Rig::Take take{0, left > 512 ? 512 : left > 2 ? left - 2 : 1};
          rig.step({&take, 1});
          left -= take.n;
        }
        const Place places[] = {{0, kLong - 1}, {0, kLong - 2}, {0, 2047}};
        conclude(result, compare_outputs(rig, places, context.workers()));
      });
}

}  // namespace

void check_fold(Context& context) {
  std::vector<std::pair<DType, int>> tasks;
  for (const DType type : context.kv_types(formats::kKeys))
    for (const int head_dim : context.head_dims()) tasks.emplace_back(type, head_dim);
  const int longest = context.head_dims().back() >= 256 ? 256 : context.head_dims().back();
  std::vector<std::vector<float>> by_one_thread(tasks.size());
  context.side_by_side(int64_t(tasks.size()), [&](Context& part, int64_t i) {
    const auto [type, head_dim] = tasks[size_t(i)];
    std::vector<float> outputs = fold_type(part, type, head_dim);
    if (&part != &context) by_one_thread[size_t(i)] = std::move(outputs);
    tiles_of_type(part, type, head_dim);
    if (head_dim == longest && formats::require(type).takes(longest)) merge_type(part, type, longest);
  });
  for (size_t i = 0; i < tasks.size(); ++i)
    threads_of_type(context, tasks[i].first, tasks[i].second, std::move(by_one_thread[i]));
}

}  // namespace kvasir::verify
