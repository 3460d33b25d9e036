// A backend and an executable that pass every call on to the product's: what tests of the gate change is one
// call each.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "backends/backend.h"

namespace kvasir::verify {

class ForwardingExecutable : public backends::Executable {
 public:
  explicit ForwardingExecutable(std::unique_ptr<backends::Executable> inner) : inner_(std::move(inner)) {}
  int max_rows() const override { return inner_->max_rows(); }
  std::vector<std::string> describe() const override { return inner_->describe(); }
  void submit(const graph::StepParams& step) override { inner_->submit(step); }
  std::span<const float> read(int row) override { return inner_->read(row); }
  std::span<const float> inspect(graph::ValueId value) override { return inner_->inspect(value); }
  std::vector<backends::TraceRow> trace() const override { return inner_->trace(); }

 protected:
  std::unique_ptr<backends::Executable> inner_;
};

class Forwarding : public backends::Backend {
 public:
  explicit Forwarding(std::unique_ptr<backends::Backend> inner) : inner_(std::move(inner)) {}
  backends::Caps caps() const override { return inner_->caps(); }
  std::byte* alloc(size_t bytes) override { return inner_->alloc(bytes); }
  void free(std::byte* buffer) override { inner_->free(buffer); }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override { inner_->copy(to, from, bytes); }
  void read_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, const std::byte* page,
                 std::byte* rows) override {
    inner_->read_page(spec, part, kv_head, page, rows);
  }
  void upload(const graph::Graph& graph, const backends::DropSource& drop,
              const std::function<void(float)>& progress) override {
    inner_->upload(graph, drop, progress);
  }
  std::unique_ptr<backends::Executable> compile(const graph::Graph& graph,
                                                const backends::Decisions& decisions,
                                                const backends::KvBuffers& kv, int max_rows) override {
    return inner_->compile(graph, decisions, kv, max_rows);
  }

 protected:
  std::unique_ptr<backends::Backend> inner_;
};

}  // namespace kvasir::verify
