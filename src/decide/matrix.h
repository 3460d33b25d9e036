// One table from many machines' records, as Markdown: published geometries at several contexts, on every
// device that sent a record. A pure function of the files: it says what was proved there, with the kernels of
// then.
#pragma once
#include <string>
#include <vector>

#include "decide/cost.h"
#include "decide/evidence.h"
#include "decide/quality.h"

namespace kvasir::decide {

struct MatrixInputs {
  std::vector<Evidence> records;
  std::vector<MachineTable> machines;
  std::vector<QualityTable> qualities;
};

// Takes one file of a folder of evidence. Throws Error{kBadFile} for one that is none of the three kinds.
void add_evidence(MatrixInputs& inputs, std::string_view text, std::string_view name);

std::string matrix_markdown(const MatrixInputs& inputs);

}  // namespace kvasir::decide
