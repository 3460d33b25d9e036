// A loaded model: file, configuration, tokenizer, graph and the backend that holds its weights.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "backends/backend.h"
#include "base/log.h"
#include "gguf/file.h"
#include "gguf/model_config.h"
#include "graph/graph.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir::engine {

class Model;

struct LoadOptions {
  std::string path;
  std::string backend = "cpu";
  int n_threads = 0;  // 0: every core the process may use
  bool load_weights = true;  // false: configuration and tokenizer only
  Log log;
  std::function<void(float)> progress;  // 0..1
  // Called when everything but the weights is there: what cannot run is refused before the wait for them.
  std::function<void(const Model&)> before_upload;
};

class Model {
 public:
  // Throws Error: kBadFile, kRefused (architecture or type), kNoDevice (backend), kNoMemory.
  static std::shared_ptr<Model> load(const LoadOptions& options);
  ~Model();

  const std::string& path() const;
  const gguf::File& file() const;
  const gguf::ModelConfig& config() const;
  const text::Tokenizer& tokenizer() const;
  text::ChatFamily chat_family() const;
  const text::ChatOptions& chat_options() const;
  // What a user of the chat template should know about how it was recognised; empty when nothing.
  const std::string& chat_note() const;
  const graph::Graph& graph() const;
  backends::Backend& backend() const;
  bool has_weights() const;  // the backend has them
  int n_threads() const;
  const Log& log() const;

  // SHA-256 (hex) of all metadata and tensors of the file, however it is split; computed once, when first asked for.
  const std::string& content_hash() const;
  int64_t n_params() const;
  uint64_t weight_bytes() const;       // of the file's tensors
  // "gemma3 270M Q4_K_M"-like label from the file's own keys.
  std::string description() const;
  // Bytes of weights one decode step reads (every matmul weight once, lookup tables not counted).
  uint64_t step_weight_bytes() const;
  // Multiply-accumulate flops (2 x weights) of one row through the whole graph without the logits, and through the ops
  // that a prompt row whose logits are not wanted executes.
  double row_flops() const;
  double prompt_row_flops() const;
  double logits_flops() const;

 private:
  Model();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir::engine
