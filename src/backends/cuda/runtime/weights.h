// The weights of one graph on the device: matrices and lookup tables in planes (kernels/args.h), vectors in
// f32.
#pragma once
#include <functional>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/kernels/args.h"
#include "backends/cuda/runtime/device.h"
#include "graph/graph.h"

namespace kvasir::cuda {

struct DeviceWeights {
  std::vector<MatrixView> matrices;   // by weight; form kNone when no op uses it as one
  std::vector<const float*> vectors;  // by weight; null when no op uses it as one
  std::vector<Memory> memory;
};

// Throws Error{kRefused} naming tensor and type, Error{kNoMemory} before anything is uploaded.
DeviceWeights upload_weights(const graph::Graph& graph, cudaStream_t stream, const backends::DropSource& drop,
                             const std::function<void(float)>& progress);

}  // namespace kvasir::cuda
