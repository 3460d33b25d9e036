// Which storage type each tensor of a model gets under a named mix ("q4_k_m"): the mixes and rules users know
// from llama.cpp, as data. Used for synthetic files and by the quantiser.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace kvasir::gguf {

struct Recipe {
  std::string_view name;   // "q4_k_m", "q8_0", "f16"
  std::string_view alias;  // "q4_k", or empty
  DType base;              // of a matrix no rule speaks of
  uint32_t file_type;      // value of key general.file_type
};

std::span<const Recipe> recipes();
const Recipe* find_recipe(std::string_view name);  // by name or alias; nullptr when unknown
std::string recipe_names();                        // "f32 f16 ... q4_k_m"

struct RecipeTensor {
  std::string_view name;
  Shape shape;
};

// What the rules ask about a model.
struct RecipeModel {
  int n_layer = 0;
  int n_head = 0, n_kv = 0;  // of the first layer
  int n_shared = 0;          // last layers that read another layer's keys and values
  int n_expert = 0;
};

// One entry a tensor; nullopt: keep the type it has (vectors, norms, routers, the per-layer projection). A
// type whose block does not divide the row length is replaced by the nearest one that does.
std::vector<std::optional<DType>> assign_types(const Recipe& recipe, const RecipeModel& model,
                                               std::span<const RecipeTensor> tensors);

}  // namespace kvasir::gguf
