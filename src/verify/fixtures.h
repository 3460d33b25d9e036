// The public verification fixtures: JSON files of a query, stored rows and the scores or outputs they should
// give (kernels turbo3, turbo4, turbo3_tcq, qjl, polar, fused_attn_qjl_tbq, fused_attn_qjl_polar). Rows are
// read by the product's scalar codecs; the older bytes of turbo3 and turbo4 by readers that serve nothing
// else.
#pragma once
#include <string>

#include "formats/tcq_table.h"

namespace kvasir::verify {

struct FixtureResult {
  std::string kernel;
  int passed = 0, total = 0;
  double max_diff = 0;      // |got - expected|
  double max_relative = 0;  // over the largest |expected| of the file
};
inline constexpr double kFixtureTolerance = 1e-3;  // absolute, as the files' own gate has it

// Throws Error{kBadFile} naming the file and the field that is missing, of the wrong size or unknown, and for
// turbo3_tcq without a table.
FixtureResult check_fixture(const std::string& path, const formats::TcqTable* table);

}  // namespace kvasir::verify
