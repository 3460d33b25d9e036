// What else the machine is doing while something is timed, and how much memory it has.
#pragma once
#include <cstdint>
#include <string>

#include "engine/session.h"

namespace kvasir::app {

double load_average();        // one minute
uint64_t memory_total();      // bytes
uint64_t memory_available();  // bytes; 0 when unknown
uint64_t memory_limit();      // bytes this process may use of memory_total(): a container may have less
std::string utc_time();       // "2026-11-29T20:46:00Z"

// Share of all cores' time that other programs used between two moments.
class ForeignLoad {
 public:
  ForeignLoad();
  double share() const;  // 0..1
  static constexpr double kContended = 0.10;

 private:
  double busy_, own_, wall_;
};

// Bytes of keys and values that the attention ops of one step read when `n_visible` tokens are stored.
double kv_read_bytes(const engine::Session& session, int n_visible);
// Mean bytes a decode step reads while the cache grows from n_before by n_steps.
double step_read_bytes(const engine::Session& session, int n_before, int n_steps);

}  // namespace kvasir::app
