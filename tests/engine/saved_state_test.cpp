// A saved state goes on with the bits of the session that was never saved, and nothing else is ever read as
// one.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string_view>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/sha256.h"
#include "engine/state_io.h"
#include "engine/tiny.h"
#include "formats/format.h"

namespace kvasir::test {
namespace {

using engine::Session;
using engine::SessionOptions;
using engine::Want;
using text::Token;
using Bytes = std::vector<std::byte>;

std::vector<Token> prompt(size_t n) {
  auto ids = reference().array<Token>("long.ids");
  ids.resize(n);
  return ids;
}

// Logits of every token of `ids`, `step` at a time.
std::vector<float> go_on(Session& s, std::span<const Token> ids, size_t step, Want want = Want::kAll) {
  std::vector<float> all;
  for (size_t i = 0; i < ids.size(); i += step)
    s.append(
        0, ids.subspan(i, std::min(step, ids.size() - i)), want,
        [&](int, std::span<const float> logits) { all.insert(all.end(), logits.begin(), logits.end()); });
  return all;
}

Bytes save(const Session& s, int seq = 0) {
  Bytes bytes;
  s.save_state(seq,
               [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  EXPECT_EQ(bytes.size(), s.state_bytes(seq));
  return bytes;
}

void load(Session& s, const Bytes& bytes, int seq = 0) { s.load_state(seq, *engine::state_in_memory(bytes)); }

// Saved after n tokens and loaded into a session of another micro-batch, both give the same bits from there
// on, and what is saved again is the same bytes.
void expect_same_future(const SessionOptions& options, size_t n, size_t more = 70, size_t step = 512) {
  const auto ids = prompt(n + more);
  const std::span<const Token> all(ids);
  Session kept(tiny(), options);
  go_on(kept, all.first(n), step, Want::kNone);
  const Bytes bytes = save(kept);
  SessionOptions other = options;
  other.n_ubatch = 48;
  Session loaded(tiny(), other);
  go_on(loaded, all.first(std::min<size_t>(100, n + more)), 512,
        Want::kNone);  // what it held before does not matter
  load(loaded, bytes);
  ASSERT_EQ(loaded.size(), int(n));
  EXPECT_TRUE(std::ranges::equal(loaded.tokens(), kept.tokens()));
  if (n + more <= 512) {  // one window: everything that is stored fits
    EXPECT_TRUE(save(loaded) == bytes) << n;
  }
  EXPECT_EQ(go_on(loaded, all.subspan(n), 35, Want::kLast), go_on(kept, all.subspan(n), 35, Want::kLast))
      << n << " tokens";
}

std::string name(DType type) { return std::string(formats::require(type).name); }

TEST(SavedState, EveryTypeGoesOnWithTheSameBits) {
  for (DType type : tiny()->backend().caps().kv_types) {
    SCOPED_TRACE(name(type));
    for (size_t n : {1, 64, 100}) expect_same_future(session_options(type, 512, 512), n, 30);
  }
}

TEST(SavedState, AWindowThatHasMovedOn) {
  for (DType type : {DType::f16, DType::q8_0, DType::tbq4_0, DType::tbq4_h, DType::qjl1_256}) {
    SCOPED_TRACE(name(type));
    expect_same_future(session_options(type, 1024, 512), 650);
  }
}

TEST(SavedState, OpenPagesAtAnyFill) {
  for (DType type : {DType::f16, DType::q5_0, DType::tbq3_h})
    for (size_t n = 0; n <= 70; n += n % 64 == 62 || n % 64 <= 1 ? 1 : 10) {
      SCOPED_TRACE(name(type));
      expect_same_future(session_options(type, 256, 256), n, 8);
    }
}

TEST(SavedState, MixedTypesAndExactPages) {
  SessionOptions options = session_options(DType::tbq4_h, 1024, 512);
  options.kv.v = DType::f16;  // one side encodes whole pages, the other does not
  expect_same_future(options, 100, 40);
  options.kv.v = DType::tbq3_ht;
  options.kv.k_sliding = DType::f16;
  options.kv.v_sliding = DType::q8_0;
  for (size_t n : {100, 640}) expect_same_future(options, n);
  options.kv_exact_first = 64;
  options.kv_exact_last = 100;
  for (size_t n : {64, 200, 650}) expect_same_future(options, n);
}

TEST(SavedState, AfterAShiftAndInAnotherSequence) {
  const auto ids = prompt(900);
  const std::span<const Token> all(ids);
  for (DType type : {DType::q8_0, DType::tbq4_h}) {
    SessionOptions options = session_options(type, 1024, 64);
    Session kept(tiny(), options);
    go_on(kept, all.first(800), 64, Want::kNone);
    kept.shift(0, 64, 256);
    go_on(kept, all.subspan(800, 30), 64, Want::kNone);
    const Bytes bytes = save(kept);
    options.n_seq = 2;
    Session loaded(tiny(), options);
    loaded.append(0, all.first(200), Want::kNone, nullptr);
    load(loaded, bytes, 1);
    loaded.copy(1, 0);
    const auto expected = go_on(kept, all.subspan(830), 70);
    EXPECT_EQ(go_on(loaded, all.subspan(830), 70), expected) << name(type);
    EXPECT_TRUE(loaded.shift(1, 0, 64) > 0);
  }
}

// A shift brings pages that were encoded to where exact ones are read: they stay encoded, saved or not.
TEST(SavedState, ExactPagesAfterAShift) {
  const auto ids = prompt(760);
  const std::span<const Token> all(ids);
  for (const bool first : {true, false})
    for (const size_t n : {640, 650}) {
      SessionOptions options = session_options(DType::tbq4_h, 1024, 64);
      (first ? options.kv_exact_first : options.kv_exact_last) = 256;
      Session kept(tiny(), options);
      go_on(kept, all.first(n), 64, Want::kNone);
      EXPECT_GT(first ? kept.shift(0, 64, 64) : kept.shift(0, int(n) / 64 * 64 - 128, 64), 0);
      const Bytes bytes = save(kept);
      Session loaded(tiny(), options);
      load(loaded, bytes);
      EXPECT_TRUE(save(loaded) == bytes);
      EXPECT_EQ(go_on(loaded, all.subspan(n), 70), go_on(kept, all.subspan(n), 70)) << first << ' ' << n;
    }
}

// ---- refusals
// --------------------------------------------------------------------------------------------------

struct Saved {
  SessionOptions options = session_options(DType::tbq2_h, 256, 128);
  std::vector<Token> ids = prompt(140);
  Bytes bytes;
  Saved() {
    Session s(tiny(), options);
    s.append(0, std::span<const Token>(ids).first(70), Want::kNone, nullptr);
    bytes = save(s);
  }
};

const Saved& saved() {
  static const Saved s;
  return s;
}

// The session that every refusal is tried on, and what it would say next.
struct Victim {
  Session session{tiny(), saved().options};
  std::vector<Token> ids = prompt(140);
  std::vector<float> expected;
  Victim() {
    Session other(tiny(), saved().options);
    other.append(0, std::span<const Token>(ids).first(90), Want::kNone, nullptr);
    expected = go_on(other, std::span<const Token>(ids).subspan(90), 50, Want::kLast);
    session.append(0, std::span<const Token>(ids).first(90), Want::kNone, nullptr);
  }
  // The message of the refusal.
  std::string refused(const Bytes& bytes, ErrorCode code) {
    try {
      load(session, bytes);
      ADD_FAILURE() << "was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "";
  }
  void unharmed() {
    EXPECT_EQ(session.size(), 90);
    EXPECT_EQ(go_on(session, std::span<const Token>(ids).subspan(90), 50, Want::kLast), expected);
  }
};

size_t header_bytes(const Bytes& bytes) {
  uint32_t n = 0;
  std::memcpy(&n, bytes.data() + 12, 4);
  return 64 + n;
}

// The state with its header's text changed and every checksum over it right again.
Bytes with_header(Bytes bytes, const std::string& from, const std::string& to) {
  const size_t end = header_bytes(bytes);
  std::string text(reinterpret_cast<const char*>(bytes.data()) + 64, end - 64);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  text.resize(end - 64);  // spare zeros at the end take up what `to` is longer
  std::memcpy(bytes.data() + 64, text.data(), text.size());
  Sha256 hash;
  hash.update(std::span(bytes).first(32));
  hash.update(std::span(bytes).subspan(64, end - 64));
  const Sha256Digest sum = hash.finish();
  std::memcpy(bytes.data() + 32, sum.data(), 32);
  return bytes;
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

TEST(SavedState, OneFlippedByteAnywhereIsRefusedWithItsPage) {
  Victim victim;
  const Bytes& good = saved().bytes;
  const size_t header = header_bytes(good);
  for (size_t at = 0; at < good.size(); at += at < header + 500 ? 1 : 173) {
    Bytes bytes = good;
    bytes[at] ^= std::byte(1 << at % 8);
    try {
      load(victim.session, bytes);
      FAIL() << "byte " << at << " of " << good.size() << " was taken";
    } catch (const Error& error) {
      const std::string text = error.what();
      if (at < header) continue;
      EXPECT_EQ(error.code(), ErrorCode::kBadFile);
      if (at >= header + 64 + 70 * 4) expect_words(text, {"layer ", "page ", "checksum"});
      if (at < header + 64 + 70 * 4) expect_words(text, {"the tokens", "checksum"});
    }
  }
  victim.unharmed();
}

TEST(SavedState, TruncatedAtAnyByteIsRefused) {
  Victim victim;
  const Bytes& good = saved().bytes;
  const size_t header = header_bytes(good);
  for (size_t n = 0; n < good.size(); n += n < 80 ? 1 : n < header ? 31 : 237) {
    const std::string text = victim.refused({good.begin(), good.begin() + long(n)}, ErrorCode::kBadFile);
    if (n > 0) expect_words(text, {"truncated"});
    if (n > header + 64 + 70 * 4) expect_words(text, {"layer ", "page "});
  }
  Bytes longer = good;
  longer.push_back({});
  expect_words(victim.refused(longer, ErrorCode::kBadFile), {"1 bytes follow"});
  victim.unharmed();
}

TEST(SavedState, AnotherModelTypeTableSeedOrVersionIsRefused) {
  Victim victim;
  const Bytes& good = saved().bytes;
  Session other(tiny("tiny-gemma4-q8_0.gguf"), saved().options);
  other.append(0, prompt(70), Want::kNone, nullptr);
  expect_words(victim.refused(save(other), ErrorCode::kRefused), {"another model"});
  for (DType type : {DType::tbq2_ht, DType::f16, DType::tbq4_h}) {
    Session s(tiny(), session_options(type, 256));
    s.append(0, prompt(70), Want::kNone, nullptr);
    expect_words(victim.refused(save(s), ErrorCode::kRefused),
                 {("-ctk " + name(type)).c_str(), "-ctk tbq2_h"});
  }
  expect_words(victim.refused(with_header(good, "\"table\":\"", "\"table\":\"0"), ErrorCode::kRefused),
               {"layer 0, keys", "codebook table"});
  expect_words(
      victim.refused(with_header(good, "0x6b76617369720041", "0x6b76617369720042"), ErrorCode::kRefused),
      {"layer 0, values", "seed 0x6b76617369720042"});
  expect_words(victim.refused(with_header(good, "\"basis\":\"", "\"basis\":\"0"), ErrorCode::kRefused),
               {"basis"});
  Bytes version = good;
  version[8] = std::byte(kvasir::engine::kStateVersion + 1);
  expect_words(victim.refused(version, ErrorCode::kRefused), {"version 3", "version 2"});
  SessionOptions exact = saved().options;
  exact.kv_exact_last = 64;
  Session s(tiny(), exact);
  expect_words(victim.refused(save(s), ErrorCode::kRefused), {"--kv-exact-last"});
  victim.unharmed();
}

TEST(SavedState, HostileHeadersAreRefused) {
  Victim victim;
  const Bytes& good = saved().bytes;
  expect_words(victim.refused(with_header(good, "\"tokens\":70", "\"tokens\":71"), ErrorCode::kBadFile),
               {"bytes"});
  expect_words(victim.refused(with_header(good, "\"tokens\":70", "\"tokens\":-1"), ErrorCode::kBadFile),
               {"tokens"});
  for (const char* n : {"2000000000", "99999999999999999999", "300"})
    victim.refused(with_header(good, "\"tokens\":70", "\"tokens\":" + std::string(n)),
                   std::string(n) == "99999999999999999999" ? ErrorCode::kBadFile : ErrorCode::kRefused);
  expect_words(victim.refused(with_header(good, "\"shift\":0", "\"shift\":3"), ErrorCode::kBadFile),
               {"shift"});
  expect_words(victim.refused(with_header(good, "\"keep_pages\":0", "\"keep_pages\":1"), ErrorCode::kBadFile),
               {"keep_pages"});
  expect_words(victim.refused(with_header(good, "\"first_page_sliding\":0", "\"first_page_sliding\":1"),
                              ErrorCode::kBadFile),
               {"first_page_sliding"});
  expect_words(victim.refused(with_header(good, "\"caches\":[{", "\"caches\":[]"), ErrorCode::kBadFile),
               {"JSON"});
  expect_words(victim.refused(with_header(good, "\"caches\"", "\"cachet\""), ErrorCode::kBadFile),
               {"caches"});
  for (size_t at : {12, 15, 16, 23}) {  // sizes
    Bytes bytes = good;
    bytes[at] = std::byte(255);
    victim.refused(bytes, ErrorCode::kBadFile);
  }
  victim.refused({}, ErrorCode::kBadFile);
  victim.unharmed();
}

// After a shift less is known of what must be there, but never that the page being written may be missing.
TEST(SavedState, HostileHeadersAfterAShift) {
  Session s(tiny(), saved().options);
  s.append(0, std::span<const Token>(saved().ids).first(134), Want::kNone, nullptr);
  ASSERT_GT(s.shift(0, 0, 64), 0);  // 70 tokens are left
  const Bytes good = save(s);
  Victim victim;
  expect_words(victim.refused(with_header(good, "\"first_page_sliding\":0", "\"first_page_sliding\":2"),
                              ErrorCode::kBadFile),
               {"first_page_sliding"});
  for (const char* pages : {"[]", "[0]", "[1,1]", "[2]", "[-1]", "7"})
    expect_words(
        victim.refused(with_header(good, "\"exact_pages\":[1]", "\"exact_pages\":" + std::string(pages)),
                       ErrorCode::kBadFile),
        {"exact_pages"});
  victim.unharmed();
}

// Any bytes for a header, with a checksum that is right: a refusal, or (where the byte says nothing, as in
// the name) the state itself; never a crash, another exception or a large allocation.
TEST(SavedState, AnyHeaderIsAnswered) {
  const Bytes& good = saved().bytes;
  const size_t end = header_bytes(good);
  Session session(tiny(), saved().options);
  uint32_t random = 1;
  const auto next = [&] { return random = random * 1664525 + 1013904223; };
  int taken = 0;
  for (int round = 0; round < 600; ++round) {
    Bytes bytes = good;
    const bool whole = round % 2 == 0;  // or only within the first fields, which say how large all is
    for (uint32_t n = 1 + next() % 3; n > 0; --n) {
      const size_t at = 64 + (next() >> 8) % (whole ? end - 64 : 300);
      static constexpr std::string_view kBytes = "0123456789-.,:[]{}\"e";
      bytes[at] =
          round % 3 == 0 ? std::byte(next() >> 16) : std::byte(kBytes[(next() >> 16) % kBytes.size()]);
    }
    Sha256 hash;
    hash.update(std::span(bytes).first(32));
    hash.update(std::span(bytes).subspan(64, end - 64));
    const Sha256Digest sum = hash.finish();
    std::memcpy(bytes.data() + 32, sum.data(), 32);
    try {
      load(session, bytes);
      ++taken;
      EXPECT_EQ(session.size(), 70);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kBadFile || error.code() == ErrorCode::kRefused) << error.what();
    }
  }
  EXPECT_LT(taken, 200);
}

TEST(SavedState, TokensOutsideTheVocabularyAreRefused) {
  Victim victim;
  Bytes bytes = saved().bytes;
  const size_t record = header_bytes(bytes);
  const int32_t wrong = 1 << 20;
  std::memcpy(bytes.data() + record + 64, &wrong, 4);
  Sha256 hash;
  hash.update(std::span(bytes).subspan(record, 32));
  hash.update(std::span(bytes).subspan(record + 64, 70 * 4));
  const Sha256Digest sum = hash.finish();
  std::memcpy(bytes.data() + record + 32, sum.data(), 32);
  expect_words(victim.refused(bytes, ErrorCode::kBadFile), {"token 0", "vocabulary"});
  victim.unharmed();
}

TEST(SavedState, AStateLongerThanTheContextIsRefused) {
  Session s(tiny(), session_options(DType::tbq2_h, 64, 64));
  try {
    load(s, saved().bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRefused);
    expect_words(error.what(), {"70 tokens", "holds 64"});
  }
}

TEST(SavedState, FilesAreReplacedWhole) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "kvasir_saved_state";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string path = (folder / "state").string();
  Session s(tiny(), saved().options);
  load(s, saved().bytes);
  engine::save_state_file(s, 0, path);
  engine::save_state_file(s, 0, path);
  EXPECT_EQ(fs::file_size(path), saved().bytes.size());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "a temporary file was left";
  Session t(tiny(), saved().options);
  engine::load_state_file(t, 0, path);
  EXPECT_TRUE(save(t) == saved().bytes);
  EXPECT_THROW(engine::save_state_file(s, 0, folder.string()), Error);
  EXPECT_THROW(engine::save_state_file(s, 0, (folder / "none" / "state").string()), Error);
  EXPECT_THROW(engine::load_state_file(t, 0, (folder / "missing").string()), Error);
  EXPECT_THROW(engine::load_state_file(t, 0, folder.string()), Error);
  EXPECT_EQ(t.size(), 70);
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  engine::save_state_file(s, 0, path);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  // A write that ends early leaves what was there.
  EXPECT_THROW(
      {
        AtomicFile file(path);
        file.write(std::as_bytes(std::span("half")));
        fail(ErrorCode::kFailed, "stopped");
      },
      Error);
  EXPECT_EQ(fs::file_size(path), saved().bytes.size());
  fs::create_symlink(path, folder / "link");
  engine::save_state_file(s, 0, (folder / "link").string());
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  fs::create_symlink(folder / "nowhere", folder / "dangling");
  fs::create_symlink(folder / "loop", folder / "loop");
  for (const char* name : {"dangling", "loop"})
    EXPECT_THROW(engine::save_state_file(s, 0, (folder / name).string()), Error) << name;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 4) << "a temporary file was left";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace kvasir::test
