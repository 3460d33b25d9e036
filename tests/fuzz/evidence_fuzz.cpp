// Any text as a file of the cache folder: a record of verify, costs of a machine, quality or speed of a
// model. Only kvasir::Error may come out, and what is read can be decided with and written again.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "decide/cost.h"
#include "decide/evidence.h"
#include "decide/matrix.h"
#include "decide/quality.h"
#include "decide/speed.h"

namespace {

using namespace kvasir;

template <typename Call>
void attempt(Call call) {
  try {
    call();
  } catch (const Error&) {
  }
}

const decide::ModelGeometry& model() {
  static const decide::ModelGeometry geometry =
      decide::published_geometry(*gguf::find_geometry("gemma4-e2b"));
  return geometry;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  constexpr const char* kName = "fuzz.json";
  attempt([&] {
    const decide::Evidence record = decide::from_json(text, kName);
    decide::doubts(record, {});
    decide::from_json(decide::to_json(record), kName);
  });
  attempt([&] {
    const decide::MachineTable table = decide::machine_from_json(text, kName);
    const decide::KvTypes types{DType::q8_0, DType::q8_0, {}, {}};
    decide::predict_step(table, model(), types, 1000);
    decide::predict_prompt(table, model(), types, 1000, 1000, 512);
    decide::machine_from_json(decide::to_json(table), kName);
  });
  attempt([&] { decide::quality_from_json(text, kName); });
  attempt([&] { decide::speed_from_json(text, kName); });
  attempt([&] {
    decide::MatrixInputs inputs;
    decide::add_evidence(inputs, text, kName);
  });
  return 0;
}
