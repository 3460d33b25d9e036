#include "backends/cuda/runtime/cuda_backend.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "backends/cuda/kernels/elementwise/elementwise.h"
#include "backends/cuda/kernels/weights/weights.h"
#include "backends/cuda/runtime/executable.h"
#include "backends/cuda/runtime/pages.h"
#include "base/error.h"
#include "formats/format.h"

namespace kvasir::cuda {
namespace {

// "GPU-01234567-89ab-cdef-0123-456789abcdef", as nvidia-smi -L has it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i)
    text += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        static_cast<unsigned char>(uuid.bytes[i]));
  return text;
}

std::string driver_text() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return fmt::format("CUDA {}.{}, runtime {}.{}", driver / 1000, driver % 1000 / 10, runtime / 1000,
                     runtime % 1000 / 10);
}

constexpr std::string_view kPortable = "sm_80";
#ifdef KVASIR_SM_90A
constexpr bool kHopperBuilt = true;
#else
constexpr bool kHopperBuilt = false;
#endif

// Counts the backends that are alive: the device can be reset when there are none.
class Alive {
 public:
  Alive() {
    const std::lock_guard guard(lock_);
    ++n_;
  }
  ~Alive() {
    const std::lock_guard guard(lock_);
    --n_;
  }
  static bool any() {
    const std::lock_guard guard(lock_);
    return n_ > 0;
  }
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;

 private:
  static inline std::mutex lock_;
  static inline int n_ = 0;
};

class CudaBackend final : public backends::Backend {
 public:
  explicit CudaBackend(std::string_view isa) {
    check(cudaSetDevice(0), "opening the device");
    check(cudaGetDeviceProperties(&device_, 0), "reading the device's properties");
    const bool hopper = device_.major == 9 && device_.minor == 0;
    // A Hopper card whose own kernels this build lacks is one that has the portable ones: records say so.
    const std::string own = hopper && !kHopperBuilt ? std::string(kPortable)
                                                    : fmt::format("sm_{}{}", device_.major, device_.minor);
    isa_ = isa.empty() ? own : std::string(isa);
    if (isa_ != own && isa_ != kPortable)
      fail(ErrorCode::kUsage, "kernels '{}' are unknown or not for this device; it has {}{}", isa,
           own == kPortable ? "" : own + " and ", kPortable);
    portable_ = isa_ == kPortable || !hopper;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  backends::Caps caps() const override {
    backends::Caps caps;
    caps.name = "cuda";
    caps.device = device_.name;
    caps.isa = isa_;
    caps.uuid = uuid_text(device_.uuid);
    caps.driver = driver_text();
    caps.memory_bytes = device_.totalGlobalMem;
    for (const formats::Format& format : formats::all()) {
      if (weight_form(format.type) != WeightForm::kNone) caps.weight_types.push_back(format.type);
      if (kv_form(format.type)) caps.kv_types.push_back(format.type);
    }
    caps.head_dims = {64, 128, 256, 512};
    return caps;
  }

  std::byte* alloc(size_t bytes) override {
    if (bytes == 0) return nullptr;
    Memory memory(bytes, Place::kDevice, "allocating the KV cache");
    check(cudaMemsetAsync(memory.as(), 0, bytes, stream_), "clearing the KV cache");
    std::byte* data = memory.as<std::byte>();
    buffers_.emplace(data, std::move(memory));
    return data;
  }
  void free(std::byte* buffer) override {
    cudaStreamSynchronize(stream_);
    buffers_.erase(buffer);
  }
  uint64_t free_bytes() override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free memory");
    return free;
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying a cache page");
  }
  void read_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, const std::byte* page,
                 std::byte* rows) override {
    read_cache_page(spec, part, kv_head, page, rows, stream_);
  }
  void write_page(const graph::KvSpec& spec, backends::PagePart part, int kv_head, std::byte* page,
                  const std::byte* rows) override {
    write_cache_page(spec, part, kv_head, page, rows, stream_);
  }
  void upload(const graph::Graph& graph, const backends::DropSource& drop,
              const std::function<void(float)>& progress) override {
    weights_ = upload_weights(graph, stream_, drop, progress);
  }
  std::unique_ptr<backends::Executable> compile(const graph::Graph& graph,
                                                const backends::Decisions& decisions,
                                                const backends::KvBuffers& kv, int max_rows) override {
    backends::Decisions own = decisions;
    own.portable_kernels = own.portable_kernels || portable_;
    return std::make_unique<CudaExecutable>(graph, weights_, own, kv, max_rows, stream_, isa_);
  }

 private:
  Alive alive_;  // first: it outlives what is on the device
  cudaDeviceProp device_{};
  std::string isa_;
  bool portable_ = false;  // no kernels but those that sm_80 has too
  cudaStream_t stream_ = nullptr;
  DeviceWeights weights_;
  std::map<std::byte*, Memory> buffers_;
};

}  // namespace

std::string device_problem() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver)
    return "no NVIDIA driver was found, or it is older than this program's CUDA runtime; install a driver "
           "for CUDA 13 or later";
  if (status != cudaSuccess && status != cudaErrorNoDevice)
    return fmt::format("the CUDA runtime reports: {}", cudaGetErrorString(status));
  if (count == 0) return "the driver lists no CUDA device";
  if (!Alive::any() && !revive_device())
    return "an error took the device from this process, and the driver does not give it back: start the program again";
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) return "the first CUDA device cannot be opened";
  if (device.major < 8)
    return fmt::format("{} has compute capability {}.{}; the kernels need 8.0 or later", device.name,
                       device.major, device.minor);
  if (!has_code_for_device())
    return fmt::format(
        "{} has compute capability {}.{}, and this program's kernels are built for {}; configure with "
        "-DKVASIR_CUDA_ARCHITECTURES={}{}",
        device.name, device.major, device.minor, KVASIR_CUDA_ARCHITECTURES, device.major, device.minor);
  return {};
}

std::unique_ptr<backends::Backend> create_backend(std::string_view isa) {
  const std::string problem = device_problem();
  if (!problem.empty()) fail(ErrorCode::kNoDevice, "backend 'cuda': {}", problem);
  return std::make_unique<CudaBackend>(isa);
}

double measure_copy_rate() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  const size_t bytes = std::min(size_t(2) << 30, free / 4);
  const Memory from(bytes, Place::kDevice, "measuring the copy rate"),
      to(bytes, Place::kDevice, "measuring the copy rate");
  check(cudaMemset(from.as(), 0x5a, bytes), "measuring the copy rate");
  cudaEvent_t start, end;
  check(cudaEventCreate(&start), "measuring the copy rate");
  check(cudaEventCreate(&end), "measuring the copy rate");
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    cudaEventRecord(start);
    cudaMemcpyAsync(to.as(), from.as(), bytes, cudaMemcpyDeviceToDevice);
    cudaEventRecord(end);
    check(cudaEventSynchronize(end), "measuring the copy rate");
    float ms = 0;
    cudaEventElapsedTime(&ms, start, end);
    if (i >= 2) times.push_back(ms);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  std::ranges::sort(times);
  return 2.0 * double(bytes) / (double(times[times.size() / 2]) * 1e-3);
}

}  // namespace kvasir::cuda
