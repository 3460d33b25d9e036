// Digests tell types, sides and head sizes apart and never change by themselves.
#include "formats/identity.h"

#include <gtest/gtest.h>

#include <set>

namespace kvasir::formats {
namespace {

TEST(Identity, TellsTypesSidesAndHeadSizesApart) {
  std::set<std::string> tables, bases;
  int n_tables = 0;
  for (const Format& format : all())
    for (int d : {64, 128, 256, 512})
      if (format.takes(d)) tables.insert(identity(format, kKeys, d).table), ++n_tables;
  EXPECT_EQ(tables.size(), size_t(n_tables));
  for (int d : {64, 128, 256, 512})
    for (Role side : {kKeys, kValues}) bases.insert(identity(require(DType::tbq4_h), side, d).basis);
  EXPECT_EQ(bases.size(), 8u);
}

TEST(Identity, OneBasisForTypesThatShareIt) {
  const Identity a = identity(require(DType::tbq4_h), kValues, 256),
                 b = identity(require(DType::tbq2_ht), kValues, 256);
  EXPECT_EQ(a.basis, b.basis);
  EXPECT_EQ(a.seed, "0x6b76617369720041");
  EXPECT_EQ(b.seed, a.seed);
  EXPECT_EQ(identity(require(DType::tbq4_h), kKeys, 256).seed, "0x6b76617369720040");
  EXPECT_EQ(identity(require(DType::q8_0), kKeys, 256).seed, "");
}

}  // namespace
}  // namespace kvasir::formats
