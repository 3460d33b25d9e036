// What the bytes of a cache type mean, as digests: two builds that agree on them read each other's rows
// alike.
#pragma once
#include <string>

#include "formats/format.h"

namespace kvasir::formats {

struct Identity {
  // SHA-256 (hex) of what decode makes of 64 rows of random bytes: the codebook and where its codes lie.
  std::string table;
  // SHA-256 (hex) of where the basis takes a fixed row: its signs and butterflies.
  std::string basis;
  // The state that splitmix64 makes the signs from ("0x..."); empty for a basis whose signs come from no
  // seed.
  std::string seed;
};

// `side` is kKeys or kValues. Precondition: format.takes(head_dim).
Identity identity(const Format& format, Role side, int head_dim);

}  // namespace kvasir::formats
