// A backend that passes every call on to the product's: what tests of the gate change is one call each.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "backends/backend.h"

namespace kvasir::verify {

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
  void submit(backends::Executable& executable, const graph::StepParams& step) override {
    inner_->submit(executable, step);
  }
  std::span<const float> read(backends::Executable& executable, int row) override {
    return inner_->read(executable, row);
  }
  std::span<const float> inspect(backends::Executable& executable, graph::ValueId value) override {
    return inner_->inspect(executable, value);
  }
  std::vector<backends::TraceRow> trace(backends::Executable& executable) override {
    return inner_->trace(executable);
  }

 protected:
  std::unique_ptr<backends::Backend> inner_;
};

}  // namespace kvasir::verify
