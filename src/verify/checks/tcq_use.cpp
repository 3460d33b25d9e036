#include "verify/checks/tcq_use.h"

#include "formats/format.h"
#include "verify/reference/random.h"

namespace kvasir::verify {

const reference::Codec* TcqUse::codec_of(DType type) const {
  if (codec && type == DType::tbq3_tcq) return codec.get();
  return reference::find_codec(formats::require(type).name);
}

double TcqUse::type_error(DType type, int head_dim) const {
  if (codec && type == DType::tbq3_tcq) return error;
  const reference::Codec* own = codec_of(type);
  if (own && own->theory(head_dim) > 0) return own->theory(head_dim);
  return formats::require(type).theory(head_dim);
}

TcqUse use_table(std::shared_ptr<const formats::TcqTable> table) {
  TcqUse use;
  if (!table) return use;
  use.codec = reference::make_tcq_codec(table->level);
  constexpr int kValues = 128, kRows = 512;
  reference::Gaussian random(0x7c9);
  double off = 0, total = 0;
  for (int r = 0; r < kRows; ++r) {
    std::vector<double> x, y(kValues);
    for (int i = 0; i < kValues; ++i) x.push_back(random.next());
    std::vector<std::byte> row(use.codec->row_bytes(kValues));
    use.codec->encode(x.data(), kValues, row.data());
    use.codec->decode(row.data(), kValues, y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      off += (y[i] - x[i]) * (y[i] - x[i]);
      total += x[i] * x[i];
    }
  }
  use.error = off / total;
  use.table = std::move(table);
  return use;
}

}  // namespace kvasir::verify
