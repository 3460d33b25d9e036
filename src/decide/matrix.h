// One table from many machines' records, as Markdown: published geometries at several contexts, on every
// device that sent a record. A pure function of the files: it says what was proved there, with the kernels of
// then.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "decide/cost.h"
#include "decide/evidence.h"
#include "decide/quality.h"
#include "decide/speed.h"

namespace kvasir::decide {

struct MatrixInputs {
  std::vector<Evidence> records;
  std::vector<MachineTable> machines;
  std::vector<QualityTable> qualities;
  std::vector<SpeedTable> speeds;
};

// Takes one file of a folder of evidence. Throws Error{kBadFile} for one that is none of the four kinds.
void add_evidence(MatrixInputs& inputs, std::string_view text, std::string_view name);

// `kernels`: hash of this program's kernels by backend. A record or a table of others is called stale by name and
// proves nothing; a backend that is not in the map is not compared.
std::string matrix_markdown(const MatrixInputs& inputs, const std::map<std::string, std::string>& kernels = {});

}  // namespace kvasir::decide
