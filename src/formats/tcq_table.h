// The table of tbq3_tcq: 512 levels by state. It is data: Kvasir's own (trained by recipe: train-codebook
// tcq) unless a session brings another. Immutable once made.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvasir::formats {

inline constexpr int kTcqStates = 512;

struct TcqTable {
  // By state o[t-2] | o[t-1] << 3 | o[t] << 6, for rows of norm 1 (tbq3_tcq.h).
  std::array<float, kTcqStates> level;
  // nearest(level / step), by the state as trellis.h has it: o[t] | o[t-1] << 3 | o[t-2] << 6. What searches
  // and attention read; |level - step * rounded| <= step / 2, and 0 for Kvasir's own table.
  std::array<int8_t, kTcqStates> rounded;
  float step;        // largest |level| / 127
  std::string hash;  // SHA-256 of the 512 levels as little-endian f32, hexadecimal
};

// The state with its three symbols in the opposite order: from TcqTable::level's index to ::rounded's and
// back.
constexpr int mirrored_state(int s) { return (s & 7) << 6 | (s & 56) | s >> 6; }

const TcqTable& own_tcq_table();
// `name` is for messages. Errors: kBadFile when there are not 512 levels, one is not finite, or the largest
// magnitude is outside [2^-10, 2^10] (scales are f16).
std::shared_ptr<const TcqTable> make_tcq_table(std::span<const float> levels, const std::string& name);
// A file of 512 little-endian f32. Errors: kBadFile, also when it cannot be read.
std::shared_ptr<const TcqTable> load_tcq_table(const std::string& path);

}  // namespace kvasir::formats
