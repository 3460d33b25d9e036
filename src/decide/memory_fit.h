// Whether a model and a context fit a budget of memory, and how much context would.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "decide/geometry.h"

namespace kvasir::decide {

inline constexpr uint64_t kDefaultReserve = uint64_t(1536) << 20;  // left to everything else on a host
inline constexpr uint64_t kDeviceReserve = uint64_t(512) << 20;    // on a device with memory of its own
inline constexpr int kHostMicroBatch = 512, kDeviceMicroBatch = 2048;

// "64MiB", "8GB", "0": a whole number and a unit (B KB MB GB TB, KiB MiB GiB TiB); a number alone only when
// it is 0. Throws Error{kUsage} "WHAT TEXT: ..." otherwise.
uint64_t parse_size(std::string_view text, std::string_view what);

// What a backend keeps: the CPU leaves the per-layer embedding in the file's mapping.
struct MemoryNeed {
  uint64_t weights = 0;
  uint64_t kv = 0;       // exact
  uint64_t scratch = 0;  // activations of a micro-batch, by formula
  uint64_t total() const { return weights + kv + scratch; }
};
MemoryNeed memory_need(const ModelGeometry& geometry, const KvTypes& types, int n_ctx, int n_ubatch,
                       bool host);

// Rows of a step when nobody says how many: more on a device, where a prompt's matrices fill its units and
// pages of codes are expanded once a step (an H200 reads a prompt of 8192 with E2B 1.5 times as fast as in
// steps of 512); the fewer of a host there too where `need` of the more is over a known `budget`.
constexpr int default_micro_batch(bool host) { return host ? kHostMicroBatch : kDeviceMicroBatch; }
int fitting_micro_batch(bool host, std::optional<uint64_t> budget,
                        const std::function<MemoryNeed(int n_ubatch)>& need);

// The largest context up to `limit` whose need is within `budget`; 0 when not even one token fits.
int largest_context(const ModelGeometry& geometry, const KvTypes& types, uint64_t budget, int limit,
                    int n_ubatch, bool host);

// Why a context does not fit `available` bytes of `where` ("memory", a device's name): what it needs, and the
// largest context that fits; empty when it does. `need` grows with the context.
std::string context_refusal(int n_ctx, uint64_t available, std::string_view where,
                            const std::function<MemoryNeed(int n_ctx)>& need);

// What a device may be filled with: `total` less `reserve`, 0 at least.
uint64_t usable(uint64_t total, uint64_t reserve);

std::string bytes_text(uint64_t bytes);  // "1.5 GiB"

}  // namespace kvasir::decide
