// A conversation that goes on for turn after turn holds as much memory as it did at the start: 30 turns,
// scaled down (bench/turns runs them at full length).
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include "engine/generate.h"
#include "engine/state_io.h"
#include "engine/tiny.h"

namespace kvasir::test {
namespace {

using engine::Session;
using engine::Want;
using text::Token;

constexpr size_t kKiB = 1024;

size_t resident() {
  long size = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> size >> pages;
  return size_t(pages) * size_t(sysconf(_SC_PAGESIZE));
}

size_t heap() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

// Runs turn(i) 30 times; what is held after the fifth may not grow.
template <typename Turn>
void expect_flat(const Turn& turn) {
  if (sanitized()) GTEST_SKIP() << "a sanitizer's allocator keeps what is freed";
  size_t resident_before = 0, heap_before = 0;
  for (int i = 0; i < 30; ++i) {
    turn(i);
    if (i == 4) resident_before = resident(), heap_before = heap();
  }
  EXPECT_LE(heap(), heap_before + 64 * kKiB)
      << "heap in use grew by " << (heap() - heap_before) / kKiB << " KiB";
  EXPECT_LE(resident(), resident_before + 1024 * kKiB) << "from " << resident_before / kKiB << " KiB";
}

std::vector<Token> tokens_of_turn(int turn, size_t n) {
  std::vector<Token> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = Token(5 + (i * 7919 + size_t(turn) * 104729) % 1000);
  return ids;
}

TEST(Turns, AContextThatShiftsHoldsNoMore) {
  auto options = session_options(DType::tbq4_h, 1024, 256);
  options.kv.v_sliding = DType::q8_0;
  Session s(tiny("tiny-gemma4-q8_0.gguf"), options);
  expect_flat([&](int turn) {
    const auto ids = tokens_of_turn(turn, 320);
    if (s.size() + int(ids.size()) > 1024) s.shift(0, 64, 512);
    s.append(0, ids, Want::kLast, [](int, std::span<const float>) {});
    s.append(0, std::span(ids).first(1), Want::kLast, [](int, std::span<const float>) {});
  });
}

TEST(Turns, NewPromptsStatesAndGenerationHoldNoMore) {
  Session s(tiny("tiny-gemma4-q8_0.gguf"), session_options(DType::tbq3_ht, 512, 128));
  engine::GenerateOptions options;
  options.ignore_end = true;
  options.n_predict = 4;
  std::vector<std::byte> bytes;
  expect_flat([&](int turn) {
    engine::generate(s, 0, tokens_of_turn(turn, 130), options, [](std::string_view) { return true; });
    bytes.clear();
    s.save_state(
        0, [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
    s.load_state(0, *engine::state_in_memory(bytes));
    s.truncate(0, 100);
  });
}

}  // namespace
}  // namespace kvasir::test
