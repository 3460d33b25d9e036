// Writer and reader: every value type, tensors, splits, unknown keys, failures of the system.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "formats/format.h"
#include "gguf/bytes.h"
#include "gguf/file.h"
#include "gguf/writer.h"

namespace kvasir::gguf {
namespace {

using test::Bytes;
using test::TempFolder;

Shape shape(std::initializer_list<int64_t> ne) {
  Shape out;
  out.n_dims = int(ne.size());
  std::copy(ne.begin(), ne.end(), out.ne.begin());
  return out;
}

std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

void write_everything(const std::string& path) {
  Writer writer(path);
  writer.add_string("general.architecture", "test");
  writer.add_u32("a.u32", 0xffffffff);
  writer.add_i32("a.i32", -5);
  writer.add_u64("a.u64", 1ull << 40);
  writer.add_f32("a.f32", 0.5f);
  writer.add_bool("a.bool", true);
  writer.add_string("a.string", std::string_view("n\0l \xc3\xa9", 6));
  writer.add_i32_array("b.i32", std::vector<int32_t>{-1, 2, 3});
  writer.add_u32_array("b.u32", std::vector<uint32_t>{1, 2});
  writer.add_f32_array("b.f32", std::vector<float>{1.5f, -2.5f});
  writer.add_bool_array("b.bool", std::vector<uint8_t>{1, 0, 1});
  writer.add_string_array("b.string", std::vector<std::string_view>{"x", "", "zz"});
  writer.add_i32_array("b.empty", {});
  writer.add_tensor("t.vector", DType::f32, shape({5}));
  writer.add_tensor("t.matrix", DType::q8_0, shape({64, 3}));
  writer.begin_data();
  std::vector<float> values(5);
  std::iota(values.begin(), values.end(), 1.0f);
  writer.data(bytes_of(values));
  const std::vector<std::byte> blocks(34 * 6, std::byte(7));
  writer.data(std::span(blocks).first(100));
  writer.data(std::span(blocks).subspan(100));
  writer.finish();
}

TEST(RoundTrip, EveryKindOfValue) {
  const TempFolder folder;
  const std::string path = folder.file("all.gguf");
  write_everything(path);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  const auto file = File::open(path);
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->path(), path);
  EXPECT_EQ(file->file_bytes(), std::filesystem::file_size(path));
  EXPECT_EQ(file->metadata().size(), 13u);
  EXPECT_EQ(file->string("general.architecture"), "test");
  EXPECT_EQ(file->integer("a.u32"), 0xffffffffll);
  EXPECT_EQ(file->integer("a.i32"), -5);
  EXPECT_EQ(file->integer("a.u64"), 1ll << 40);
  EXPECT_EQ(file->number("a.f32"), 0.5);
  EXPECT_EQ(file->number("a.i32"), -5.0);
  EXPECT_TRUE(file->require("a.bool").boolean());
  EXPECT_EQ(file->string("a.string"), std::string_view("n\0l \xc3\xa9", 6));
  EXPECT_EQ(file->require("b.i32").integer(0), -1);
  EXPECT_EQ(file->require("b.u32").integer(1), 2);
  EXPECT_EQ(file->require("b.f32").number(1), -2.5);
  EXPECT_FALSE(file->require("b.bool").boolean(1));
  EXPECT_EQ(file->require("b.string").string(2), "zz");
  EXPECT_EQ(file->require("b.string").count(), 3u);
  EXPECT_EQ(file->require("b.empty").count(), 0u);
  EXPECT_EQ(file->integer_or("absent", 9), 9);
  EXPECT_EQ(file->number_or("absent", 0.25), 0.25);
  EXPECT_EQ(file->find("absent"), nullptr);
}

TEST(RoundTrip, Tensors) {
  const TempFolder folder;
  const std::string path = folder.file("all.gguf");
  write_everything(path);
  const auto file = File::open(path);
  ASSERT_EQ(file->tensors().size(), 2u);
  const TensorInfo& vector = file->require_tensor("t.vector");
  EXPECT_EQ(vector.type, DType::f32);
  EXPECT_EQ(vector.shape.text(), "[5]");
  float last;
  std::memcpy(&last, vector.data.data() + 16, 4);
  EXPECT_EQ(last, 5.0f);
  const TensorInfo& matrix = file->require_tensor("t.matrix");
  EXPECT_EQ(matrix.shape.text(), "[64, 3]");
  EXPECT_EQ(matrix.data.size(), 34u * 6);
  for (std::byte b : matrix.data) EXPECT_EQ(b, std::byte(7));
  file->drop(matrix);
  EXPECT_EQ(matrix.data[0], std::byte(7)) << "dropped pages come back from the file";
  EXPECT_EQ(file->find_tensor("absent"), nullptr);
}

TEST(RoundTrip, WrongKindsNameFileAndKey) {
  const TempFolder folder;
  const std::string path = folder.file("all.gguf");
  write_everything(path);
  const auto file = File::open(path);
  const auto message = [&](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadFile);
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message([&] { file->integer("nothing"); }).find("key 'nothing' is missing"), std::string::npos);
  EXPECT_NE(message([&] { file->integer("a.string"); }).find("key 'a.string' holds string; an integer"),
            std::string::npos);
  EXPECT_NE(message([&] { file->integer("a.f32"); }).find("holds f32"), std::string::npos);
  EXPECT_NE(message([&] { file->string("a.u32"); }).find("a string is needed"), std::string::npos);
  EXPECT_NE(message([&] { file->integer("b.i32"); }).find("an array of 3; a single value"),
            std::string::npos);
  EXPECT_NE(message([&] { file->require("b.i32").integer(3); }).find("element 3 is needed"),
            std::string::npos);
  EXPECT_NE(message([&] { file->require("b.i32").boolean(1); }).find("a boolean"), std::string::npos);
  EXPECT_NE(message([&] { file->require_tensor("t.none"); }).find("tensor 't.none' is missing"),
            std::string::npos);
}

TEST(RoundTrip, ReadsEveryWidthAndVersion2) {
  const TempFolder folder;
  const std::string path = folder.file("widths.gguf");
  test::write_file(path, Bytes()
                             .header(0, 9, 2)
                             .string("u8")
                             .u32(0)
                             .put(uint8_t(200))
                             .string("i8")
                             .u32(1)
                             .put(int8_t(-100))
                             .string("u16")
                             .u32(2)
                             .put(uint16_t(60000))
                             .string("i16")
                             .u32(3)
                             .put(int16_t(-30000))
                             .string("i64")
                             .u32(11)
                             .put(int64_t(-(1ll << 50)))
                             .string("u64")
                             .u32(10)
                             .put(~uint64_t(0))
                             .string("f64")
                             .u32(12)
                             .put(0.1)
                             .string("yes")
                             .u32(7)
                             .u8(1)
                             .string("a16")
                             .u32(9)
                             .u32(2)
                             .u64(2)
                             .put(uint16_t(7))
                             .put(uint16_t(8))
                             .str());
  const auto file = File::open(path);
  EXPECT_EQ(file->version(), 2u);
  EXPECT_EQ(file->integer("u8"), 200);
  EXPECT_EQ(file->integer("i8"), -100);
  EXPECT_EQ(file->integer("u16"), 60000);
  EXPECT_EQ(file->integer("i16"), -30000);
  EXPECT_EQ(file->integer("i64"), -(1ll << 50));
  EXPECT_THROW(file->integer("u64"), Error);
  EXPECT_EQ(file->number("f64"), 0.1);
  EXPECT_EQ(file->integer("yes"), 1);
  EXPECT_EQ(file->require("a16").integer(1), 8);
}

TEST(RoundTrip, UnknownKeysAreCopiedUnchanged) {
  const TempFolder folder;
  const std::string from = folder.file("from.gguf"), to = folder.file("to.gguf");
  test::write_file(from, Bytes()
                             .header(0, 5)
                             .string("x.u8")
                             .u32(0)
                             .u8(9)
                             .string("x.f64")
                             .u32(12)
                             .put(-3.25)
                             .string("x.i16s")
                             .u32(9)
                             .u32(3)
                             .u64(2)
                             .put(int16_t(-1))
                             .put(int16_t(4))
                             .string("x.strings")
                             .u32(9)
                             .u32(8)
                             .u64(2)
                             .string("one")
                             .string("two")
                             .key_string("x.text", "hello")
                             .str());
  {
    const auto source = File::open(from);
    Writer writer(to, 64);
    for (const KeyValue& pair : source->metadata()) writer.add_copy(pair);
    writer.finish();
  }
  const auto source = File::open(from), copy = File::open(to);
  EXPECT_EQ(copy->integer("general.alignment"), 64);
  ASSERT_EQ(copy->metadata().size(), source->metadata().size() + 1);
  for (const KeyValue& pair : source->metadata()) {
    const Value& value = copy->require(pair.key);
    EXPECT_EQ(value.type(), pair.value.type());
    EXPECT_EQ(value.element_type(), pair.value.element_type());
    EXPECT_EQ(value.count(), pair.value.count());
    EXPECT_TRUE(std::ranges::equal(value.raw(), pair.value.raw())) << pair.key;
  }
}

TEST(RoundTrip, SplitFilesReadAsOne) {
  const TempFolder folder;
  for (uint32_t i = 0; i < 3; ++i) {
    Writer writer(folder.file(fmt::format("m-{:05}-of-00003.gguf", i + 1)));
    if (i == 0) writer.add_string("general.architecture", "gemma3");
    writer.add_u32("split.no", i);
    writer.add_u32("split.count", 3);
    writer.add_i32("split.tensors.count", 3);
    writer.add_tensor(fmt::format("t{}", i), DType::f32, shape({4}));
    writer.begin_data();
    writer.data(bytes_of(std::vector<float>(4, float(i))));
    writer.finish();
  }
  for (int given = 1; given <= 3; ++given) {
    const auto file = File::open(folder.file(fmt::format("m-{:05}-of-00003.gguf", given)));
    EXPECT_EQ(file->string("general.architecture"), "gemma3");
    ASSERT_EQ(file->tensors().size(), 3u);
    for (int i = 0; i < 3; ++i) {
      const TensorInfo& tensor = file->require_tensor(fmt::format("t{}", i));
      EXPECT_EQ(tensor.part, i);
      float value;
      std::memcpy(&value, tensor.data.data(), 4);
      EXPECT_EQ(value, float(i));
      file->drop(tensor);
    }
  }
}

TEST(RoundTrip, VocabularyOf262144StringsParsesFast) {
  const TempFolder folder;
  const std::string path = folder.file("vocab.gguf");
  std::vector<std::string> words;
  for (int i = 0; i < 262144; ++i) words.push_back(fmt::format("token{}", i));
  const std::vector<std::string_view> views(words.begin(), words.end());
  Writer writer(path);
  writer.add_string_array("tokenizer.ggml.tokens", views);
  writer.finish();
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const auto file = File::open(path);
    best = std::min(
        best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    EXPECT_EQ(file->require("tokenizer.ggml.tokens").string(262143), "token262143");
  }
  RecordProperty("milliseconds", std::to_string(best));
  EXPECT_LT(best, 100) << "a few ms in a release build; the limit allows for sanitizers and load";
}

TEST(Writing, HeaderOnlyIsASparseFileOfTheRightSize) {
  const TempFolder folder;
  const std::string path = folder.file("big.gguf");
  Writer writer(path);
  writer.add_string("general.architecture", "gemma4");
  writer.add_tensor("w", DType::q8_0, shape({4096, 262144}));
  writer.finish_header_only();
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_GT(info.st_size, 1ll << 30);
  EXPECT_LT(info.st_blocks * 512, 1 << 20);
  const auto file = File::open(path);
  EXPECT_EQ(file->require_tensor("w").data.size(), 4096ull * 262144 / 32 * 34);
}

std::string failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailed);
    return error.what();
  }
  return {};
}

TEST(Writing, MisuseIsNamedAndLeavesNoFile) {
  const TempFolder folder;
  const std::string path = folder.file("bad.gguf");
  const auto expect = [&](const char* message, const std::function<void(Writer&)>& use) {
    const std::string found = failure([&] {
      Writer writer(path);
      use(writer);
    });
    EXPECT_NE(found.find(message), std::string::npos) << found;
    EXPECT_EQ(found.rfind(path, 0), 0u) << found;
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  };
  expect("key 'k' is added twice", [](Writer& w) { w.add_u32("k", 1), w.add_bool("k", true); });
  expect("empty", [](Writer& w) { w.add_u32("", 1); });
  expect("declared twice", [](Writer& w) {
    w.add_tensor("t", DType::f32, shape({4})), w.add_tensor("t", DType::f32, shape({4}));
  });
  expect("multiple of 256", [](Writer& w) { w.add_tensor("t", DType::q4_k, shape({100})); });
  expect("longer than 63", [](Writer& w) { w.add_tensor(std::string(64, 'x'), DType::f32, shape({4})); });
  expect("not in this build", [](Writer& w) { w.add_tensor("t", DType(999), shape({4})); });
  expect("has 0 of 16 bytes", [](Writer& w) { w.add_tensor("t", DType::f32, shape({4})), w.finish(); });
  expect("1 bytes beyond the last tensor", [](Writer& w) {
    w.begin_data();
    const std::byte one{};
    w.data({&one, 1});
  });
  expect("metadata after the header", [](Writer& w) { w.begin_data(), w.add_u32("k", 1); });
  expect("is not a boolean", [](Writer& w) { w.add_bool_array("k", std::vector<uint8_t>{2}); });
  EXPECT_NE(failure([&] { Writer writer(path, 24); }).find("alignment 24"), std::string::npos);
}

TEST(Writing, AbandonedWriterLeavesTheOldFile) {
  const TempFolder folder;
  const std::string path = folder.file("keep.gguf");
  test::write_file(path, "old");
  { Writer writer(path); }
  EXPECT_EQ(std::filesystem::file_size(path), 3u);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(Writing, MissingFolderIsNamed) {
  const std::string found = failure([] { Writer writer("/no/such/folder/m.gguf"); });
  EXPECT_NE(found.find("No such file or directory"), std::string::npos) << found;
}

TEST(Writing, ADiskThatFillsUpIsAnErrorAndLeavesNothing) {
  const TempFolder folder;
  const std::string path = folder.file("full.gguf");
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ::getrlimit(RLIMIT_FSIZE, &old_limit);
  rlimit limit = old_limit;
  limit.rlim_cur = 2 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string found = failure([&] {
    Writer writer(path);
    writer.add_tensor("t", DType::f32, shape({1 << 20}));
    writer.begin_data();
    const std::vector<float> values(1 << 20);
    writer.data(bytes_of(values));
    writer.finish();
  });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_NE(found.find("cannot write: File too large"), std::string::npos) << found;
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

}  // namespace
}  // namespace kvasir::gguf
