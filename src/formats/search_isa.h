// One row of functions an instruction set; search.cpp picks. Every row gives the same bits.
#pragma once
#include "formats/search.h"

namespace kvasir::formats {

struct SearchFunctions {
  void (*round_levels)(const Grid&, const float*, float, int, float*);
  void (*round_levels_min)(int, const float*, float, float, int, float*);
  float (*fit_symmetric)(const Grid&, const Trials&, const float*, const float*, int);
  ScaleMin (*fit_scale_min)(int, const Trials&, bool, const float*, const float*, int);
  void (*fit_symmetric_superblock)(const SymmetricSpec&, const float*, const float*, SymmetricSuperblock&);
  void (*fit_min_superblock)(const ScaleMinSpec&, const float*, const float*, ScaleMinSuperblock&);
};

const SearchFunctions& search_generic();
#if defined(__x86_64__)
const SearchFunctions& search_avx2();
const SearchFunctions& search_avx512();
#endif
// The fastest row this CPU runs.
const SearchFunctions& best_search();

}  // namespace kvasir::formats
