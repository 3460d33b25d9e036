#include "backends/cuda/runtime/weights.h"

#include <algorithm>

#include "backends/cuda/kernels/weights/weights.h"
#include "base/error.h"
#include "formats/format.h"

namespace kvasir::cuda {
namespace {

using graph::Op;
using graph::OpKind;

constexpr size_t kSliceBytes = size_t(64) << 20;   // of a tensor, copied and repacked at a time
constexpr size_t kReserveBytes = size_t(1) << 30;  // kept free for activations and a small context

struct Uses {
  bool matrix = false, vector = false;
};

std::vector<Uses> find_uses(const graph::Graph& graph) {
  std::vector<Uses> uses(graph.weights.size());
  const auto mark = [&](graph::WeightId w, bool Uses::*use) {
    if (w != graph::kNone) uses[size_t(w)].*use = true;
  };
  for (const Op& op : graph.ops) {
    switch (op.kind) {
      case OpKind::norm:
      case OpKind::rope:
        mark(op.w[0], &Uses::vector);
        break;
      case OpKind::embed:
      case OpKind::matmul:
      case OpKind::logits:
        mark(op.w[0], &Uses::matrix);
        break;
      case OpKind::gated_mlp:
        mark(op.w[0], &Uses::matrix);
        mark(op.w[1], &Uses::matrix);
        break;
      case OpKind::per_layer_embed:
        mark(op.w[0], &Uses::matrix);
        mark(op.w[1], &Uses::matrix);
        mark(op.w[2], &Uses::vector);
        break;
      case OpKind::kv_append:
      case OpKind::attention:
      case OpKind::select_rows:
        break;
    }
  }
  return uses;
}

std::string supported_types() {
  std::string names;
  for (const formats::Format& format : formats::all())
    if (weight_form(format.type) != WeightForm::kNone)
      names += (names.empty() ? "" : " ") + std::string(format.name);
  return names;
}

size_t total_bytes(const PlaneBytes& planes) {
  return size_t(planes.codes + planes.high + planes.aux + planes.aux2) + 64;
}

// Every plane on a 16-byte boundary of one allocation.
MatrixView lay_out(const graph::Weight& weight, uint8_t* at) {
  MatrixView view;
  view.form = weight_form(weight.type);
  view.n_in = int(weight.n_in);
  view.n_out = int(weight.n_out);
  const PlaneBytes planes = plane_bytes(view.form, weight.n_in, weight.n_out);
  const auto take = [&](int64_t bytes) -> const uint8_t* {
    if (bytes == 0) return nullptr;
    const uint8_t* plane = at;
    at += (bytes + 15) / 16 * 16;
    return plane;
  };
  view.codes = take(planes.codes);
  view.high = take(planes.high);
  view.aux = take(planes.aux);
  view.aux2 = take(planes.aux2);
  return view;
}

void check_types(const graph::Graph& graph, const std::vector<Uses>& uses) {
  size_t need = 0;
  for (size_t i = 0; i < uses.size(); ++i) {
    const graph::Weight& w = graph.weights[i];
    if (uses[i].vector) need += size_t(w.n_in * w.n_out) * sizeof(float);
    if (!uses[i].matrix) continue;
    if (weight_form(w.type) == WeightForm::kNone)
      fail(ErrorCode::kRefused, "tensor '{}' has type {}, which has no matmul kernel on CUDA; supported: {}",
           w.name, formats::require(w.type).name, supported_types());
    if (w.n_in % 32 != 0)
      fail(ErrorCode::kRefused, "tensor '{}' has rows of {} values; CUDA matmul takes multiples of 32",
           w.name, w.n_in);
    need += total_bytes(plane_bytes(weight_form(w.type), w.n_in, w.n_out));
  }
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  if (need + kReserveBytes > free)
    fail(ErrorCode::kNoMemory,
         "the weights need {:.1f} GB of device memory and {:.1f} GB to work in; {:.1f} of {:.1f} GB are free",
         double(need) / 1e9, double(kReserveBytes) / 1e9, double(free) / 1e9, double(total) / 1e9);
}

}  // namespace

DeviceWeights upload_weights(const graph::Graph& graph, cudaStream_t stream, const backends::DropSource& drop,
                             const std::function<void(float)>& progress) {
  const std::vector<Uses> uses = find_uses(graph);
  check_types(graph, uses);
  DeviceWeights out;
  out.matrices.resize(uses.size());
  out.vectors.resize(uses.size());
  double total = 1, done = 0;
  size_t widest = 0;
  for (const graph::Weight& w : graph.weights) {
    total += double(w.data.size());
    widest = std::max(widest, w.data.size() / size_t(w.n_out));
  }
  Memory staging(std::max(kSliceBytes, widest), Place::kDevice, "allocating the staging buffer");
  for (size_t i = 0; i < uses.size(); ++i) {
    const graph::Weight& w = graph.weights[i];
    const std::string doing = "uploading tensor '" + w.name + "'";
    if (uses[i].vector) {
      std::vector<float> values(size_t(w.n_in * w.n_out));
      formats::require(w.type).decode(w.data.data(), values.data(), int64_t(values.size()));
      out.memory.emplace_back(values.size() * sizeof(float), Place::kDevice, doing);
      out.memory.back().fill(values.data(), values.size() * sizeof(float), doing);
      out.vectors[i] = out.memory.back().as<float>();
    }
    if (uses[i].matrix) {
      out.memory.emplace_back(total_bytes(plane_bytes(weight_form(w.type), w.n_in, w.n_out)), Place::kDevice,
                              doing);
      out.matrices[i] = lay_out(w, out.memory.back().as<uint8_t>());
      const size_t row = w.data.size() / size_t(w.n_out);
      const int64_t slice = std::max<int64_t>(1, int64_t(staging.size() / row));
      for (int64_t first = 0; first < w.n_out; first += slice) {
        const int64_t n = std::min(slice, w.n_out - first);
        check(cudaMemcpyAsync(staging.as(), w.data.data() + size_t(first) * row, size_t(n) * row,
                              cudaMemcpyHostToDevice, stream),
              doing);
        repack({stream, false}, w.type, staging.as<uint8_t>(), out.matrices[i], int(first), int(n));
        check(cudaGetLastError(), doing);
        if (progress) progress(float((done + double(size_t(first + n) * row)) / total));
      }
      check(cudaStreamSynchronize(stream), doing);
    }
    done += double(w.data.size());
    if (drop && (uses[i].matrix || uses[i].vector)) drop(w);
  }
  if (progress) progress(1.0f);
  return out;
}

}  // namespace kvasir::cuda
