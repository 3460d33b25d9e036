// end_to_end: tiny-gemma4 through the engine: logits, perplexity and greedy text against another
// implementation; what each KV type costs; flash attention on and off; the same text twenty times.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "engine/session.h"
#include "verify/checks/context.h"
#include "verify/checks/tiny_gemma4.h"
#include "verify/reference/codec.h"

namespace kvasir::verify {
namespace {

using engine::Session;
using engine::Want;
using text::Token;
namespace golden = tiny_gemma4;

constexpr int kShort = 192;   // tokens of the text that the many comparisons read; its second half is scored
constexpr int kMiddle = 150;  // tokens that other micro-batches read

engine::SessionOptions session_options(const TcqUse& tcq, DType k, DType v, bool flash, int n_ubatch) {
  engine::SessionOptions options;
  if (k == DType::tbq3_tcq || v == DType::tbq3_tcq) options.kv.tcq = tcq.table;
  options.n_ctx = 704;
  options.n_ubatch = n_ubatch;
  options.kv.k = k;
  options.kv.v = v;
  options.flash_attention = flash;
  return options;
}

std::vector<float> last_logits(Session& session, std::span<const Token> tokens) {
  std::vector<float> out;
  session.append(0, tokens, Want::kLast,
                 [&](int, std::span<const float> logits) { out.assign(logits.begin(), logits.end()); });
  return out;
}

std::vector<Token> greedy(Session& session, std::span<const Token> prompt, int n) {
  std::vector<Token> text;
  std::vector<float> logits = last_logits(session, prompt);
  for (;;) {
    text.push_back(Token(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (int(text.size()) == n) return text;
    logits = last_logits(session, {&text.back(), 1});
  }
}

// ln p of every token of the vocabulary, for the second half of the first n tokens of the text. `middle`:
// gets the logits after kMiddle tokens.
std::vector<float> log_probabilities(Session& session, int n, std::vector<float>* middle = nullptr) {
  const std::vector<Token> tokens(std::begin(golden::kText), std::begin(golden::kText) + n);
  std::vector<float> rows;
  session.append(0, tokens, Want::kAll, [&](int index, std::span<const float> logits) {
    if (middle && index == kMiddle - 1) middle->assign(logits.begin(), logits.end());
    if (index < n / 2) return;
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += double(std::exp(x - top));
    const double log_sum = std::log(sum) + double(top);
    for (const float x : logits) rows.push_back(float(double(x) - log_sum));
  });
  return rows;
}

double mean_divergence(const std::vector<float>& p, const std::vector<float>& q) {
  if (p.size() != q.size() || p.empty()) return NAN;
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += double(std::exp(p[i])) * (double(p[i]) - double(q[i]));
  return sum / (kShort / 2);
}

std::string variants(const Session& session) {
  std::string text;
  for (const std::string& line : session.load_lines()) {
    const size_t at = line.find("kernel ");
    if (at == line.npos) continue;
    const std::string one = line.substr(at + 7, line.find(',', at) - at - 7);
    if (text.find(one) == text.npos) text += (text.empty() ? "" : " ") + one;
  }
  return text;
}

std::shared_ptr<engine::Model> load(const Options& options) {
  engine::LoadOptions load;
  load.path = options.model;
  load.backend = options.backend;
  load.n_threads = options.n_threads;
  return engine::Model::load(load);
}

class EndToEnd {
 public:
  EndToEnd(Context& context, std::shared_ptr<engine::Model> model)
      : context_(context), model_(std::move(model)) {
    // Weights rounded further than the reference's answer differently.
    for (const graph::Weight& weight : model_->graph().weights)
      exact_weights_ = exact_weights_ && (weight.type == DType::f16 || weight.type == DType::f32);
  }

  void run() {
    const std::vector<DType> types = both_roles();
    for (const bool flash : {true, false}) {
      golden_text(DType::f32, flash);
      golden_text(DType::f16, flash);
      golden_logits(flash);
    }
    golden_perplexity();
    Session exact(model_, options_for(DType::f32, DType::f32, true));
    exact_ = log_probabilities(exact, kShort);
    for (const DType type : types) in_one_batch_[type];  // made before threads look them up
    std::map<Context*, std::shared_ptr<engine::Model>> models = {{&context_, model_}};
    std::mutex loading;
    context_.side_by_side(int64_t(types.size()), [&](Context& part, int64_t i) {
      Seat seat{part, {}};
      {
        const std::lock_guard lock(loading);
        auto& model = models[&part];
        if (!model) model = load(part.options());
        seat.model = model;
      }
      cost(seat, types[size_t(i)], types[size_t(i)]);
      if (size_t(i) + 1 < types.size()) mixed_cost(seat, types[size_t(i)], types[size_t(i) + 1]);
      same_bits_by_batch(seat, types[size_t(i)]);
    });
    for (const DType type : types)
      if (type == DType::q8_0 || type == types.back()) repeats(type, 20);
  }

 private:
  engine::SessionOptions options_for(DType k, DType v, bool flash, int n_ubatch = 512) const {
    return session_options(context_.tcq(), k, v, flash, n_ubatch);
  }
  double type_error(DType type, int head_dim) const { return context_.tcq().type_error(type, head_dim); }
  // Where a check runs: some go side by side, each on a model of one thread.
  struct Seat {
    Context& context;
    std::shared_ptr<engine::Model> model;
  };
  std::vector<DType> both_roles() const {
    std::vector<DType> types;
    for (const DType type : context_.kv_types(formats::kKeys))
      if (formats::require(type).has_role(formats::kValues) && formats::require(type).takes(256) &&
          formats::require(type).takes(512))
        types.push_back(type);
    return types;
  }
  // Of a layer's results, relative: single precision, or (CUDA, more than 16 rows) products of f16.
  double rounding() const { return context_.caps().name == "cuda" ? 1e-3 : 1e-4; }
  // What another cut into steps may move a logit by, relative to the largest: rounding itself, and where it
  // sends a cached value over a midpoint (a chance of rounding / step) one step of the code.
  double cut_error(DType type) const {
    const double step = std::sqrt(12 * std::max(type_error(type, 256), type_error(type, 512)));
    return 2 * rounding() + (formats::require(type).open_page() ? std::sqrt(rounding() * step) : 0);
  }
  static Label label(std::string name, DType k, DType v) {
    return {"end_to_end", std::move(name), 0, std::string(type_name(k)), std::string(type_name(v))};
  }
  bool needs_exact(const Label& one) {
    if (!exact_weights_)
      not_applicable(context_, one,
                     "this file's weights are rounded further than the reference's (it used f16)");
    return exact_weights_;
  }

  void golden_text(DType type, bool flash) {
    const Label one = label(flash ? "greedy text" : "greedy text without flash attention", type, type);
    if (!needs_exact(one)) return;
    check(context_, one, [&](decide::CheckResult& result) {
      Session session(model_, options_for(type, type, flash));
      result.variant = variants(session);
      const std::vector<Token> prompt(std::begin(golden::kPrompt), std::end(golden::kPrompt));
      const auto text = greedy(session, prompt, int(std::size(golden::kGreedy)));
      int different = 0;
      for (size_t i = 0; i < text.size(); ++i) different += text[i] != golden::kGreedy[i];
      conclude(result, different, 0,
               fmt::format("{} of {} tokens differ from the reference's", different, text.size()));
    });
  }

  void golden_logits(bool flash) {
    const Label one = label(flash ? "logits" : "logits without flash attention", DType::f32, DType::f32);
    if (!needs_exact(one)) return;
    check(context_, one, [&](decide::CheckResult& result) {
      Session session(model_, options_for(DType::f32, DType::f32, flash));
      result.variant = variants(session);
      const std::vector<Token> prompt(std::begin(golden::kPrompt), std::end(golden::kPrompt));
      const auto logits = last_logits(session, prompt);
      std::vector<float> got;
      for (const int32_t id : golden::kTopIds) got.push_back(logits[size_t(id)]);
      // Single precision in another order: parts in 1e5 a layer, through ten layers, of the largest logit.
      const double bound[] = {rounding() * golden::kTopLogits[0]};
      conclude(result, compare(got, golden::kTopLogits, bound));
    });
  }

  void golden_perplexity() {
    const Label one = label("log-probability of a text", DType::f32, DType::f32);
    if (!needs_exact(one)) return;
    check(context_, one, [&](decide::CheckResult& result) {
      Session session(model_, options_for(DType::f32, DType::f32, true));
      result.variant = variants(session);
      constexpr int n = int(std::size(golden::kText));
      const auto rows = log_probabilities(session, n);
      const size_t n_vocab = rows.size() / (n / 2);
      double sum = 0;
      for (int i = 0; i + 1 < n / 2; ++i)
        sum += double(rows[size_t(i) * n_vocab + size_t(golden::kText[n / 2 + i + 1])]);
      const double mean = sum / (n / 2 - 1);
      conclude(result, std::fabs(mean - golden::kMeanLogProbability), rounding(),
               fmt::format("mean {:.6f}, reference {:.6f}", mean, golden::kMeanLogProbability));
    });
  }

  // A cache off by a relative error e of keys and of values may move the mean divergence by 5 e at most: what
  // rounding costs on this model, and far below what a rotation or a sign gone wrong does (1.7 where it was
  // seen).
  void divergence(decide::CheckResult& result, Session& session, double relative_error,
                  std::vector<float>* middle = nullptr) {
    result.variant = variants(session);
    const auto rows = log_probabilities(session, kShort, middle);
    const double kl = mean_divergence(exact_, rows);
    conclude(result, kl, 1e-5 + 5 * relative_error,
             fmt::format("mean KL divergence {:.4g} from an f32 cache", kl));
  }

  void cost(const Seat& seat, DType k, DType v) {
    const double error =
        std::max(type_error(k, 256), type_error(k, 512)) + std::max(type_error(v, 256), type_error(v, 512));
    for (const bool flash : {true, false})
      check(seat.context, label(flash ? "cost" : "cost without flash attention", k, v),
            [&](decide::CheckResult& result) {
              Session session(seat.model, options_for(k, v, flash));
              divergence(result, session, error, flash && k == v ? &in_one_batch_.at(k) : nullptr);
            });
  }

  // Sliding layers in one type, global ones in another.
  void mixed_cost(const Seat& seat, DType global, DType sliding) {
    check(seat.context, label(fmt::format("cost with {} on sliding layers", type_name(sliding)), global, global),
          [&](decide::CheckResult& result) {
            engine::SessionOptions options = options_for(global, global, true);
            options.kv.k_sliding = options.kv.v_sliding = sliding;
            if (sliding == DType::tbq3_tcq) options.kv.tcq = context_.tcq().table;
            Session session(seat.model, options);
            divergence(result, session, 2 * std::max(type_error(global, 512), type_error(sliding, 256)));
          });
  }

  void same_bits_by_batch(const Seat& seat, DType type) {
    check(seat.context, label("same logits for micro-batches of 16, 64 and 512", type, type),
          [&](decide::CheckResult& result) {
            const std::vector<Token> tokens(std::begin(golden::kText), std::begin(golden::kText) + kMiddle);
            const std::vector<float>& first = in_one_batch_.at(type);  // of the longer text, in 512
            if (first.empty()) fail(ErrorCode::kFailed, "the text in one batch gave no logits");
            int different = 0;
            for (const int n : {64, 16}) {
              Session session(seat.model, options_for(type, type, true, n));
              result.variant = variants(session);
              const auto logits = last_logits(session, tokens);
              different += int(logits.size() != first.size());
              const double top = *std::max_element(first.begin(), first.end());
              for (size_t i = 0; i < std::min(logits.size(), first.size()); ++i)
                different += context_.same_bits_by_step()
                                 ? std::memcmp(&logits[i], &first[i], sizeof(float)) != 0
                                 : std::fabs(double(logits[i]) - double(first[i])) > cut_error(type) * top;
            }
            conclude(result, different, 0, fmt::format("{} logits differ", different));
          });
  }

  void repeats(DType type, int n) {
    check(context_, label(fmt::format("{} repeats identical", n), type, type),
          [&](decide::CheckResult& result) {
            const std::vector<Token> prompt(std::begin(golden::kText), std::begin(golden::kText) + 70);
            std::vector<Token> first;
            int different = 0;
            for (int i = 0; i < n; ++i) {
              Session session(model_, options_for(type, type, true));
              result.variant = variants(session);
              const auto text = greedy(session, prompt, 10);
              if (first.empty()) first = text;
              different += text != first;
            }
            conclude(result, different, 0, fmt::format("{} of {} texts differ from the first", different, n));
          });
  }

  Context& context_;
  std::shared_ptr<engine::Model> model_;
  bool exact_weights_ = true;
  std::vector<float> exact_;
  std::map<DType, std::vector<float>> in_one_batch_;  // logits after kMiddle tokens of kShort
};

}  // namespace

void check_end_to_end(Context& context) {
  const Label label{"end_to_end", "model", 0, "", ""};
  if (context.options().model.empty()) {
    not_applicable(context, label, "no tiny-gemma4 file was found");
    return;
  }
  if (!context.options().isa.empty()) {
    not_applicable(context, label, "the engine runs the fastest kernels only");
    return;
  }
  try {
    EndToEnd(context, load(context.options())).run();
  } catch (const Error& error) {
    check(context, label, [&](decide::CheckResult&) { throw error; });
  }
}

}  // namespace kvasir::verify
