#include "formats/trellis.h"

#include "base/wide.h"

namespace kvasir::formats {

// Flattened: what is called belongs to a variant only when it is inlined there.
template <>
[[gnu::flatten]] KVASIR_WIDE void trellis_search<2>(const int8_t* x, int d, const int8_t* table,
                                                    uint8_t* symbols) {
  Trellis<2>::search(x, d, table, symbols);
}
template <>
[[gnu::flatten]] KVASIR_WIDE void trellis_search<3>(const int8_t* x, int d, const int8_t* table,
                                                    uint8_t* symbols) {
  Trellis<3>::search(x, d, table, symbols);
}
template <>
[[gnu::flatten]] KVASIR_WIDE void trellis_search<4>(const int8_t* x, int d, const int8_t* table,
                                                    uint8_t* symbols) {
  Trellis<4>::search(x, d, table, symbols);
}
[[gnu::flatten]] KVASIR_WIDE int trellis_search_open(const int8_t* x, int d, const int8_t* table,
                                                     uint8_t* symbols) {
  return Trellis<3>::search_open(x, d, table, symbols);
}

}  // namespace kvasir::formats
