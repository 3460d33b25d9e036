// The table of tbq3_tcq that a run checks in place of Kvasir's own.
#pragma once
#include <memory>

#include "formats/tcq_table.h"
#include "tensor/dtype.h"
#include "verify/reference/codec.h"

namespace kvasir::verify {

// Null: Kvasir's own.
struct TcqUse {
  std::shared_ptr<const formats::TcqTable> table;
  std::shared_ptr<const reference::Codec> codec;  // double precision's, of that table
  double error = 0;                               // its NMSE on unit Gaussian rows

  // nullptr when double precision has no such type.
  const reference::Codec* codec_of(DType type) const;
  // Error of rows of unit Gaussians in this type.
  double type_error(DType type, int head_dim) const;
};
TcqUse use_table(std::shared_ptr<const formats::TcqTable> table);

}  // namespace kvasir::verify
