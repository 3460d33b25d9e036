// The weights of one graph, prepared for this CPU: matrices repacked into panels, vectors widened to f32, lookup tables left in
// the mapped file.
#pragma once
#include <functional>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/kernels/matmul/matmul.h"
#include "base/thread_pool.h"
#include "formats/format.h"
#include "graph/graph.h"

namespace kvasir::cpu {

struct PreparedWeight {
  PackedMatrix matrix;        // when a matmul uses it
  std::vector<float> vector;  // when a norm uses it
  const formats::Format* format = nullptr;
  std::span<const std::byte> rows;  // when rows are looked up
  int64_t n_in = 0, n_out = 0;
};

// Throws Error{kRefused} naming tensor and type when a matrix has no matmul kernel here, Error{kNoMemory}.
std::vector<PreparedWeight> prepare_weights(const graph::Graph& graph, Isa isa, ThreadPool& pool,
                                            const backends::DropSource& drop,
                                            const std::function<void(float)>& progress);

}  // namespace kvasir::cpu
