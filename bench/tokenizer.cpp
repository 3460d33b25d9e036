// Load and encode speed of a model file's tokenizer, on a text and on inputs that defeat its word cache:
//   tokenizer MODEL.gguf TEXT
// With a SentencePiece file (Gemma 3) a merge list is derived from the scores and measured too: the size of
// Gemma 4's. Times are CPU time of the thread, best of several, so that other load on the machine counts
// little.
#include "text/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "gguf/file.h"

namespace {

using namespace kvasir;
using namespace kvasir::text;

constexpr size_t kBytes = size_t(1) << 20;

double cpu_ms() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
}

template <class Work>
double best_ms(int repeats, const Work& work) {
  double best = 1e300;
  for (int i = 0; i < repeats; ++i) {
    const double start = cpu_ms();
    work();
    best = std::min(best, cpu_ms() - start);
  }
  return best;
}

Vocabulary read_vocabulary(const gguf::File& file) {
  Vocabulary v;
  v.kind = file.string("tokenizer.ggml.model") == "llama" ? TokenizerKind::kSpm : TokenizerKind::kBpe;
  const gguf::Value& tokens = file.require("tokenizer.ggml.tokens");
  const gguf::Value& types = file.require("tokenizer.ggml.token_type");
  for (uint64_t i = 0; i < tokens.count(); ++i) v.tokens.push_back(tokens.string(i));
  for (uint64_t i = 0; i < types.count(); ++i) v.types.push_back(static_cast<TokenType>(types.integer(i)));
  if (const gguf::Value* scores = file.find("tokenizer.ggml.scores")) {
    for (uint64_t i = 0; i < scores->count(); ++i) v.scores.push_back(static_cast<float>(scores->number(i)));
  }
  if (const gguf::Value* merges = file.find("tokenizer.ggml.merges")) {
    for (uint64_t i = 0; i < merges->count(); ++i) v.merges.push_back(merges->string(i));
  }
  v.unk = static_cast<Token>(file.integer_or("tokenizer.ggml.unknown_token_id", -1));
  return v;
}

// Every split of a token into two tokens, best token first.
Vocabulary with_merges(Vocabulary v, std::deque<std::string>& texts) {
  std::unordered_map<std::string_view, Token> ids;
  std::vector<Token> order;
  for (Token id = 0; id < static_cast<Token>(v.tokens.size()); ++id) {
    if (v.types[id] != TokenType::normal) continue;
    ids.emplace(v.tokens[id], id);
    order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return v.scores[a] > v.scores[b]; });
  for (const Token id : order) {
    const std::string_view text = v.tokens[id];
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if (!ids.contains(text.substr(0, cut)) || !ids.contains(text.substr(cut))) continue;
      std::string& merge = texts.emplace_back(text.substr(0, cut));
      v.merges.push_back((merge += ' ') += text.substr(cut));
    }
  }
  v.kind = TokenizerKind::kBpe;
  return v;
}

std::string random_words(std::mt19937& random) {
  std::string out;
  while (out.size() < kBytes) {
    for (int n = 2 + static_cast<int>(random() % 12); n > 0; --n) out += "etaoinshrdlucmfwyp"[random() % 18];
    out += ' ';
  }
  return out;
}

std::string random_characters(std::mt19937& random) {
  std::string out;
  while (out.size() < kBytes) {
    const uint32_t c = 0x4E00 + random() % 0x2000;
    out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
            static_cast<char>(0x80 | (c & 63))};
  }
  return out;
}

void measure(const char* kind, const Vocabulary& vocabulary, const std::string& text) {
  std::unique_ptr<Tokenizer> tokenizer;
  const double load = best_ms(5, [&] { tokenizer = Tokenizer::create(vocabulary); });
  std::printf("%s: %zu tokens, %zu merges, load %.1f ms\n", kind, vocabulary.tokens.size(),
              vocabulary.merges.size(), load);
  std::mt19937 random(1);
  const std::pair<const char*, std::string> inputs[] = {{"text", text},
                                                        {"text, 4 KiB", text.substr(0, 4096)},
                                                        {"random words", random_words(random)},
                                                        {"random CJK", random_characters(random)},
                                                        {"one letter", std::string(kBytes, 'e')}};
  for (const auto& [name, input] : inputs) {
    std::vector<Token> ids;
    const double encode = best_ms(7, [&] { ids = tokenizer->encode(input, true); });
    const double decode = best_ms(3, [&] { tokenizer->decode(ids); });
    std::printf("  %-14s %8zu bytes %7zu tokens  encode %7.2f ms %6.1f MB/s  decode %6.1f MB/s\n", name,
                input.size(), ids.size(), encode, input.size() / encode / 1e3, input.size() / decode / 1e3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s MODEL.gguf TEXT\n", argv[0]);
    return 2;
  }
  try {
    std::ifstream in(argv[2], std::ios::binary);
    std::ostringstream content;
    content << in.rdbuf();
    std::string text = content.str();
    if (text.empty()) fail(ErrorCode::kUsage, "{}: cannot be read or is empty", argv[2]);
    while (text.size() < kBytes) text += content.str();
    const auto file = gguf::File::open(argv[1]);
    const Vocabulary vocabulary = read_vocabulary(*file);
    const bool spm = vocabulary.kind == TokenizerKind::kSpm;
    measure(spm ? "spm" : "bpe", vocabulary, text);
    std::deque<std::string> texts;
    if (spm) measure("bpe, derived", with_merges(vocabulary, texts), text);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
