// The same with the C++ wrapper.
#include <cstdio>
#include <kvasir/kvasir.hpp>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const kvasir::api::Model model(argv[1]);
  kvasir::api::Session session(model);
  kvasir_generate_options options = kvasir_generate_options_default();
  options.temperature = 0;
  options.n_predict = 8;
  std::string text;
  const auto collect = [&](std::string_view piece) { return text += piece, true; };
  const kvasir_generate_result result =
      session.generate(model.tokenize("It was a fine morning, and"), collect, options);
  std::printf("%s\nkvasir %s: %d tokens\n", text.c_str(), kvasir_version(), result.n_generated);
  return result.n_generated == 8 ? 0 : 1;
} catch (const kvasir::api::Failure& failure) {
  std::fprintf(stderr, "client: %s\n", failure.what());
  return 1;
}
