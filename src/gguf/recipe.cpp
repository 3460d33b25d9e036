#include "gguf/recipe.h"

#include <charconv>

#include "formats/format.h"

namespace kvasir::gguf {
namespace {

constexpr Recipe kRecipes[] = {
    {"f32", "", DType::f32, 0},        {"f16", "", DType::f16, 1},
    {"bf16", "", DType::bf16, 32},     {"q8_0", "", DType::q8_0, 7},
    {"q4_0", "", DType::q4_0, 2},      {"q4_1", "", DType::q4_1, 3},
    {"q5_0", "", DType::q5_0, 8},      {"q5_1", "", DType::q5_1, 9},
    {"q2_k", "", DType::q2_k, 10},     {"q3_k_m", "q3_k", DType::q3_k, 12},
    {"q4_k_s", "", DType::q4_k, 14},   {"q4_k_m", "q4_k", DType::q4_k, 15},
    {"q5_k_s", "", DType::q5_k, 16},   {"q5_k_m", "q5_k", DType::q5_k, 17},
    {"q6_k", "", DType::q6_k, 18},     {"iq4_nl", "", DType::iq4_nl, 25},
    {"iq4_xs", "", DType::iq4_xs, 30},
};

enum class Kind { kOther, kAttnK, kAttnV, kAttnOutput, kFfnDown, kEmbedding };

// Layers a rule covers; i counts tensors of the kind, n is their number.
enum class Where { kAll, kMore, kFirst2, kFirst4, kFirstEighth, kFirstSixteenth, kGroupsOf4 };

struct Rule {
  std::string_view recipe;
  Kind kind;
  Where where;
  DType type;
};

// The first row that fits decides.
constexpr Rule kRules[] = {
    {"q4_k_m", Kind::kAttnV, Where::kMore, DType::q6_k},
    {"q4_k_m", Kind::kFfnDown, Where::kMore, DType::q6_k},
    {"q5_k_m", Kind::kAttnV, Where::kMore, DType::q6_k},
    {"q5_k_m", Kind::kFfnDown, Where::kMore, DType::q6_k},
    {"q4_k_s", Kind::kAttnV, Where::kFirst4, DType::q5_k},
    {"q4_k_s", Kind::kFfnDown, Where::kFirstEighth, DType::q5_k},
    {"q3_k_m", Kind::kAttnV, Where::kFirst2, DType::q5_k},
    {"q3_k_m", Kind::kAttnV, Where::kAll, DType::q4_k},
    {"q3_k_m", Kind::kFfnDown, Where::kFirstSixteenth, DType::q5_k},
    {"q3_k_m", Kind::kFfnDown, Where::kAll, DType::q4_k},
    {"q3_k_m", Kind::kAttnOutput, Where::kAll, DType::q4_k},
    {"q2_k", Kind::kAttnV, Where::kGroupsOf4, DType::q4_k},
    {"q2_k", Kind::kAttnV, Where::kAll, DType::q3_k},
    {"q2_k", Kind::kFfnDown, Where::kAll, DType::q3_k},
    {"q2_k", Kind::kAttnOutput, Where::kAll, DType::q3_k},
};

bool covers(Where where, int i, int n, const RecipeModel& model) {
  switch (where) {
    case Where::kAll:
      return true;
    case Where::kMore:
      return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    case Where::kFirst2:
      return i < 2;
    case Where::kFirst4:
      return i < 4;
    case Where::kFirstEighth:
      return i < n / 8;
    case Where::kFirstSixteenth:
      return i < n / 16;
    case Where::kGroupsOf4:
      return model.n_kv > 0 && model.n_head / model.n_kv >= 4;
  }
  return false;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Kind kind_of(std::string_view name) {
  if (name == "token_embd.weight" || name == "output.weight" || name == "per_layer_token_embd.weight")
    return Kind::kEmbedding;
  if (contains(name, ".attn_k.")) return Kind::kAttnK;
  if (contains(name, ".attn_v.")) return Kind::kAttnV;
  if (contains(name, ".attn_output.")) return Kind::kAttnOutput;
  if (contains(name, ".ffn_down")) return Kind::kFfnDown;
  return Kind::kOther;
}

// Small, precious or not a matrix: left as they are.
bool kept(const RecipeTensor& tensor) {
  if (tensor.shape.n_dims < 2 || !tensor.name.ends_with("weight") || tensor.name.ends_with("_norm.weight"))
    return true;
  for (std::string_view part : {"ffn_gate_inp.", "altup", "laurel", "per_layer_model_proj"})
    if (contains(tensor.name, part)) return true;
  return false;
}

// N of "blk.N.": -1 without.
int layer_of(std::string_view name) {
  int layer = -1;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

DType fallback(DType type, int64_t row) {
  const auto fits = [&](DType t) { return row % formats::require(t).block == 0; };
  if (fits(type)) return type;
  DType next = DType::f16;
  switch (type) {
    case DType::q2_k:
    case DType::q3_k:
      next = DType::q4_0;
      break;
    case DType::q4_k:
      next = DType::q5_0;
      break;
    case DType::q5_k:
      next = DType::q5_1;
      break;
    case DType::q6_k:
      next = DType::q8_0;
      break;
    case DType::iq4_xs:
      next = DType::iq4_nl;
      break;
    default:
      break;
  }
  return fits(next) ? next : DType::f16;
}

bool is_float(DType type) { return type == DType::f32 || type == DType::f16 || type == DType::bf16; }

// Counts tensors of one kind as the rules do.
class Counter {
 public:
  Counter(const RecipeModel& model, std::span<const RecipeTensor> tensors) : model_(model) {
    for (const RecipeTensor& tensor : tensors) n_attn_v_ += kind_of(tensor.name) == Kind::kAttnV;
  }
  int total(Kind kind) const { return kind == Kind::kAttnV ? n_attn_v_ : model_.n_layer; }
  // Position of the next tensor of that kind; with experts a layer has several ffn_down, so its number
  // counts.
  int next(Kind kind, int layer) {
    if (kind == Kind::kFfnDown) return model_.n_expert > 0 ? layer : i_ffn_down_++;
    return kind == Kind::kAttnV ? i_attn_v_++ : layer;
  }

 private:
  const RecipeModel& model_;
  int n_attn_v_ = 0, i_attn_v_ = 0, i_ffn_down_ = 0;
};

DType type_of(const Recipe& recipe, const RecipeModel& model, const RecipeTensor& tensor, Counter& counter) {
  const Kind kind = kind_of(tensor.name);
  if (is_float(recipe.base) || recipe.base == DType::q8_0) return recipe.base;
  if (kind == Kind::kEmbedding) return DType::q6_k;
  const int layer = layer_of(tensor.name);
  // Keys and values of layers that share another's are not used: nothing is worth deciding about them.
  if ((kind == Kind::kAttnK || kind == Kind::kAttnV) && layer >= model.n_layer - model.n_shared)
    return DType::q8_0;
  const int i = counter.next(kind, layer), n = counter.total(kind);
  for (const Rule& rule : kRules)
    if (rule.recipe == recipe.name && rule.kind == kind && covers(rule.where, i, n, model)) return rule.type;
  return recipe.base;
}

}  // namespace

std::span<const Recipe> recipes() { return kRecipes; }

const Recipe* find_recipe(std::string_view name) {
  for (const Recipe& recipe : kRecipes)
    if (recipe.name == name || (!name.empty() && recipe.alias == name)) return &recipe;
  return nullptr;
}

std::string recipe_names() {
  std::string names;
  for (const Recipe& recipe : kRecipes) names += (names.empty() ? "" : " ") + std::string(recipe.name);
  return names;
}

std::vector<std::optional<DType>> assign_types(const Recipe& recipe, const RecipeModel& model,
                                               std::span<const RecipeTensor> tensors) {
  std::vector<std::optional<DType>> types;
  Counter counter(model, tensors);
  for (const RecipeTensor& tensor : tensors) {
    if (kept(tensor)) {
      types.push_back(std::nullopt);
    } else {
      types.push_back(fallback(type_of(recipe, model, tensor, counter), tensor.shape.ne[0]));
    }
  }
  return types;
}

}  // namespace kvasir::gguf
