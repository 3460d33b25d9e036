/* The smallest user of the C library: loads a model, continues a sentence, prints it. */
#include <kvasir/kvasir.h>
#include <stdio.h>
#include <string.h>

static int on_text(const char* text, size_t length, void* user) {
  (void)user;
  return fwrite(text, 1, length, stdout) != length;
}

int main(int argc, char** argv) {
  static const char kPrompt[] = "It was a fine morning, and";
  kvasir_model* model = NULL;
  kvasir_session* session = NULL;
  int32_t ids[64];
  size_t n = 0;
  kvasir_generate_result result = {0};
  kvasir_generate_options options = kvasir_generate_options_default();
  options.temperature = 0;
  options.n_predict = 8;
  result.struct_size = sizeof result;
  if (argc != 2 || kvasir_model_load(argv[1], NULL, &model) || kvasir_session_create(model, NULL, &session) ||
      kvasir_tokenize(model, kPrompt, strlen(kPrompt), 1, 0, ids, 64, &n) ||
      kvasir_generate(session, ids, n, &options, on_text, NULL, &result)) {
    fprintf(stderr, "client: %s\n", kvasir_last_error());
    return 1;
  }
  printf("\nkvasir %s: %d tokens\n", kvasir_version(), result.n_generated);
  kvasir_session_free(session);
  kvasir_model_free(model);
  return result.n_generated == 8 ? 0 : 1;
}
