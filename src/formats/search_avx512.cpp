#define KVASIR_SEARCH_NAMESPACE search_avx512_body
#include "formats/search_body.h"
#include "formats/search_isa.h"

namespace kvasir::formats {
const SearchFunctions& search_avx512() { return search_avx512_body::kFunctions; }
}  // namespace kvasir::formats
