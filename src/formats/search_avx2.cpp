#define KVASIR_SEARCH_NAMESPACE search_avx2_body
#include "formats/search_body.h"
#include "formats/search_isa.h"

namespace kvasir::formats {
const SearchFunctions& search_avx2() { return search_avx2_body::kFunctions; }
}  // namespace kvasir::formats
