#include "decide/memory_fit.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kvasir::decide {
namespace {

const KvTypes kQ8{DType::q8_0, DType::q8_0, {}, {}};

TEST(ParseSize, TakesWholeNumbersWithAUnit) {
  EXPECT_EQ(parse_size("64MiB", "--memory"), uint64_t(64) << 20);
  EXPECT_EQ(parse_size("8GB", "--memory"), 8000000000u);
  EXPECT_EQ(parse_size("1B", "--memory"), 1u);
  EXPECT_EQ(parse_size("0", "--memory"), 0u);
  EXPECT_EQ(parse_size("0GiB", "--memory"), 0u);
}

TEST(ParseSize, RefusesEverythingElseByName) {
  for (const char* text :
       {"", "1junk", "-1", "-1MiB", "1536.5", "1536.5MiB", "64", "MiB", " 64MiB", "64 MiB", "64MiB ", "64mib",
        "0x10MiB", "+1MiB", "99999999999999999999B", "18446744073709551615KiB", "1e3MiB"}) {
    try {
      parse_size(text, "--memory");
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_NE(std::string(error.what()).find("--memory"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("512MiB"), std::string::npos) << error.what();
    }
  }
}

TEST(LargestContext, IsExactAtItsEdge) {
  for (const char* name : {"gemma4-e2b", "gemma4-31b", "gemma3-270m"}) {
    const ModelGeometry g = published_geometry(*gguf::find_geometry(name));
    for (const int n : {1, 63, 64, 65, 513, 8191, 8192, 20000}) {
      const uint64_t need = memory_need(g, kQ8, n, 512, true).total();
      const int fits = largest_context(g, kQ8, need, g.n_ctx_train, 512, true);
      EXPECT_GE(fits, n) << name;
      EXPECT_LE(memory_need(g, kQ8, fits, 512, true).total(), need);
      // One token more is another page, or another row of the micro-batch: it does not fit.
      EXPECT_GT(memory_need(g, kQ8, fits + 1, 512, true).total(), need);
      EXPECT_LT(largest_context(g, kQ8, need - 1, g.n_ctx_train, 512, true), n) << name << " " << n;
    }
  }
}

TEST(LargestContext, NothingAndEverything) {
  const ModelGeometry g = published_geometry(*gguf::find_geometry("gemma4-e2b"));
  EXPECT_EQ(largest_context(g, kQ8, uint64_t(64) << 20, g.n_ctx_train, 512, true), 0);
  EXPECT_EQ(largest_context(g, kQ8, uint64_t(1) << 50, g.n_ctx_train, 512, true), g.n_ctx_train);
}

TEST(MemoryNeed, TheHostLeavesThePerLayerTableInTheFile) {
  const ModelGeometry g = published_geometry(*gguf::find_geometry("gemma4-e2b"));
  EXPECT_GT(g.table_bytes, uint64_t(2) << 30);
  EXPECT_EQ(memory_need(g, kQ8, 1000, 512, false).weights - memory_need(g, kQ8, 1000, 512, true).weights,
            g.table_bytes);
}

TEST(FittingMicroBatch, IsTheDevicesWhereItFits) {
  const auto need = [](int n_ubatch) { return MemoryNeed{1000, 200, uint64_t(n_ubatch)}; };
  EXPECT_EQ(fitting_micro_batch(true, {}, need), 512);
  EXPECT_EQ(fitting_micro_batch(true, 1, need), 512);
  EXPECT_EQ(fitting_micro_batch(false, {}, need), 2048);  // memory unknown
  EXPECT_EQ(fitting_micro_batch(false, 0, need), 512);
  EXPECT_EQ(fitting_micro_batch(false, 1200 + 2048, need), 2048);
  EXPECT_EQ(fitting_micro_batch(false, 1200 + 2047, need), 512);
}

TEST(ContextRefusal, NamesNeedPlaceAndTheLargestContextThatFits) {
  const auto need = [](int n_ctx) { return MemoryNeed{uint64_t(4) << 30, uint64_t(n_ctx) << 20, 1 << 20}; };
  EXPECT_EQ(context_refusal(1023, uint64_t(5) << 30, "memory", need), "");
  EXPECT_EQ(context_refusal(4096, uint64_t(5) << 30, "NVIDIA H200", need),
            "a context of 4096 needs 8.00 GiB (4.00 GiB of weights, 4.00 GiB of KV cache, 1.00 MiB to work in), "
            "but 5.00 GiB of NVIDIA H200 can be had; -c 960 fits, or choose smaller types with -ctk and -ctv");
  EXPECT_NE(context_refusal(4096, (uint64_t(4) << 30) + (30 << 20), "memory", need).find("-c 29 fits"),
            std::string::npos);
  EXPECT_NE(context_refusal(4096, uint64_t(4) << 30, "memory", need).find("no context fits"), std::string::npos);
}

TEST(Usable, LeavesTheReserve) {
  EXPECT_EQ(usable(1000, 300), 700u);
  EXPECT_EQ(usable(300, 300), 0u);
  EXPECT_EQ(usable(200, 300), 0u);
}

}  // namespace
}  // namespace kvasir::decide
