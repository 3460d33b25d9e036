#include "formats/tcq_table.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "formats/tcq_levels.h"

namespace kvasir::formats {
namespace {

TcqTable derive(std::span<const float> levels) {
  TcqTable table;
  float largest = 0;
  for (size_t s = 0; s < kTcqStates; ++s) {
    table.level[s] = levels[s];
    largest = std::fabs(levels[s]) > largest ? std::fabs(levels[s]) : largest;
  }
  table.step = largest / 127.0f;
  for (size_t s = 0; s < kTcqStates; ++s)
    table.rounded[size_t(mirrored_state(int(s)))] = int8_t(std::lround(double(levels[s]) / table.step));
  table.hash = sha256_hex(std::as_bytes(std::span(table.level)));
  return table;
}

}  // namespace

const TcqTable& own_tcq_table() {
  static const TcqTable table = [] {
    std::array<float, kTcqStates> levels;
    for (size_t s = 0; s < kTcqStates; ++s) levels[s] = float(kTcqLevels[s]) * kTcqUnit;
    return derive(levels);
  }();
  return table;
}

std::shared_ptr<const TcqTable> make_tcq_table(std::span<const float> levels, const std::string& name) {
  if (levels.size() != kTcqStates)
    fail(ErrorCode::kBadFile, "{}: a table of tbq3_tcq has {} levels; this one has {}", name, kTcqStates,
         levels.size());
  float largest = 0;
  for (size_t s = 0; s < kTcqStates; ++s) {
    if (!std::isfinite(levels[s]))
      fail(ErrorCode::kBadFile, "{}: level {} (byte {}) is {}; every level must be finite", name, s, 4 * s,
           levels[s]);
    largest = std::max(largest, std::fabs(levels[s]));
  }
  if (!(largest >= 0x1p-10f && largest <= 0x1p10f))
    fail(
        ErrorCode::kBadFile,
        "{}: the largest level is {}; levels stand for rows of norm 1 and must reach a magnitude of 2^-10 to "
        "2^10",
        name, largest);
  return std::make_shared<const TcqTable>(derive(levels));
}

std::shared_ptr<const TcqTable> load_tcq_table(const std::string& path) {
  const MappedFile file(path);
  constexpr size_t kBytes = sizeof(float) * kTcqStates;
  if (file.bytes().size() != kBytes)
    fail(ErrorCode::kBadFile, "{}: {} bytes; a table of tbq3_tcq is 512 little-endian f32, {} bytes", path,
         file.bytes().size(), kBytes);
  std::array<float, kTcqStates> levels;
  std::memcpy(levels.data(), file.bytes().data(), kBytes);
  return make_tcq_table(levels, path);
}

}  // namespace kvasir::formats
