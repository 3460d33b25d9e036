// Files that must be refused, each with a message that says what is wrong. None may crash, hang or take
// memory a count asks for.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/error.h"
#include "gguf/bytes.h"
#include "gguf/file.h"

namespace kvasir::gguf {
namespace {

using test::Bytes;

struct Hostile {
  const char* name;
  std::string bytes;
  const char* message;  // a part of it
  ErrorCode code = ErrorCode::kBadFile;
};

Bytes one_key(std::string_view key, uint32_t type) { return Bytes().header(0, 1).string(key).u32(type); }

// One tensor with a free header, and data bytes behind it.
std::string one_tensor(const std::function<void(Bytes&)>& info, size_t data) {
  Bytes out;
  out.header(1, 0);
  info(out);
  return out.pad().zeros(data).str();
}

std::vector<Hostile> corpus() {
  const uint64_t huge = 0xffffffffffffffffull;
  std::vector<Hostile> rows;
  const auto add = [&](const char* name, std::string bytes, const char* message,
                       ErrorCode code = ErrorCode::kBadFile) {
    rows.push_back({name, std::move(bytes), message, code});
  };
  // Not GGUF at all.
  add("one_byte", "G", "not a GGUF file (it starts with 47,");
  add("wrong_magic", Bytes().raw("GGUX").u32(3).zeros(16).str(), "it starts with 47 47 55 58");
  add("litert_lm", Bytes().raw("LITERTLM").zeros(64).str(), "LiteRT-LM", ErrorCode::kRefused);
  add("zip", Bytes().raw("PK\x03\x04").zeros(64).str(), "ZIP archive");
  add("safetensors", Bytes().u64(20).raw("{\"a\":{\"dtype\":1}}").zeros(64).str(), "safetensors");
  add("lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer");
  add("html", "<!DOCTYPE html><html></html>", "HTML page");
  add("old_ggml", Bytes().raw("tjgg").u32(3).zeros(64).str(), "old GGML");
  // Header.
  add("no_version", "GGUF", "ends before its version");
  add("version_0", Bytes().header(0, 0, 0).str(), "version 0 is unknown");
  add("version_1", Bytes().header(0, 0, 1).str(), "version 1 is no longer read");
  add("version_4", Bytes().header(0, 0, 4).str(), "version 4 is unknown");
  add("big_endian", Bytes().header(0, 0, 0x03000000).str(), "big-endian GGUF file (version 3)");
  add("no_counts", Bytes().raw("GGUF").u32(3).u32(0).str(), "the tensor count needs 8 bytes but only 4");
  add("huge_tensor_count", Bytes().header(huge, 0).str(), "more than any real file has");
  add("huge_key_count", Bytes().header(0, huge).str(), "more than any real file has");
  add("tensor_count_beyond_file", Bytes().header(1000, 0).zeros(64).str(), "cannot fit the 64 bytes");
  add("key_count_beyond_file", Bytes().header(0, 1000).zeros(64).str(), "cannot fit the 64 bytes");
  // Keys.
  add("key_length_beyond_file", Bytes().header(0, 1).u64(1 << 30).zeros(64).str(),
      "a metadata key needs 1073741824 bytes");
  add("key_length_huge", Bytes().header(0, 1).u64(huge).zeros(64).str(), "a metadata key needs");
  add("key_empty", Bytes().header(0, 1).string("").u32(4).u32(1).zeros(9).str(), "empty name");
  add("key_too_long", Bytes().header(0, 1).string(std::string(300, 'k')).u32(4).u32(1).str(),
      "300 bytes long");
  add("key_with_nul", Bytes().header(0, 1).string(std::string_view("a\0b", 3)).u32(4).u32(1).str(),
      "control character");
  add("key_twice", Bytes().header(0, 2).key_u32("a.b", 1).key_u32("a.b", 2).str(), "key 'a.b' appears twice");
  add("value_type_13", one_key("k", 13).zeros(16).str(), "value type 13 is unknown");
  add("value_type_huge", one_key("k", 0xffffffff).zeros(16).str(), "value type 4294967295 is unknown");
  add("value_cut_short", one_key("kk", 10).u32(0).str(), "1 elements of 8 bytes but only 4");
  add("bool_2", one_key("flag", 7).u8(2).str(), "holds the boolean 2");
  add("string_beyond_file", one_key("name", 8).u64(500).raw("short").str(),
      "name needs 500 bytes but only 5");
  add("array_nested", one_key("k", 9).u32(9).u64(1).u32(4).u64(1).u32(7).str(), "array of arrays");
  add("array_element_type_unknown", one_key("k", 9).u32(99).u64(1).zeros(8).str(),
      "element type 99 is unknown");
  add("array_count_beyond_file", one_key("k", 9).u32(4).u64(1 << 20).zeros(16).str(),
      "1048576 elements of 4 bytes");
  add("array_count_huge", one_key("k", 9).u32(12).u64(huge).zeros(16).str(),
      "elements of 8 bytes but only 16");
  add("array_strings_beyond_file", one_key("k", 9).u32(8).u64(1000).zeros(32).str(),
      "string count 1000 cannot fit");
  add("array_strings_huge", one_key("k", 9).u32(8).u64(huge).zeros(32).str(), "more than any real file has");
  add("array_string_length", one_key("k", 9).u32(8).u64(2).string("ok").u64(huge).zeros(8).str(),
      "k needs 18446744073709551615");
  add("array_bool_7", one_key("k", 9).u32(7).u64(3).u8(0).u8(1).u8(7).str(), "holds the boolean 7");
  add("alignment_0", Bytes().header(0, 1).key_u32("general.alignment", 0).str(),
      "general.alignment' is 0; a power of two");
  add("alignment_24", Bytes().header(0, 1).key_u32("general.alignment", 24).str(), "is 24; a power of two");
  add("alignment_huge", Bytes().header(0, 1).key_u32("general.alignment", 1u << 31).str(),
      "is 2147483648; a power of two");
  add("alignment_string", Bytes().header(0, 1).key_string("general.alignment", "32").str(),
      "an integer is needed");
  // Tensors.
  add("tensor_name_empty", one_tensor([](Bytes& b) { b.tensor("", 4, 0, 0); }, 32),
      "a tensor has an empty name");
  add("tensor_name_newline", one_tensor([](Bytes& b) { b.tensor("a\nb", 4, 0, 0); }, 32),
      "control character 0x0a");
  add("tensor_twice", Bytes().header(2, 0).tensor("t", 4, 0, 0).tensor("t", 4, 0, 32).pad().zeros(64).str(),
      "'t' appears twice");
  add("dims_0", one_tensor([](Bytes& b) { b.string("t").u32(0).u32(0).u64(0).u64(0); }, 32),
      "has 0 dimensions");
  add("dims_5",
      one_tensor([](Bytes& b) { b.string("t").u32(5).u64(1).u64(1).u64(1).u64(1).u64(1).u32(0).u64(0); }, 32),
      "has 5 dimensions");
  add("dim_zero", one_tensor([](Bytes& b) { b.string("t").u32(2).u64(4).u64(0).u32(0).u64(0); }, 32),
      "dimension 1 of size 0");
  add("dim_product_overflow",
      one_tensor([](Bytes& b) { b.string("t").u32(3).u64(1ull << 31).u64(1ull << 31).u64(4).u32(0).u64(0); },
                 32),
      "product of its dimensions overflows");
  add("dim_negative", one_tensor([=](Bytes& b) { b.tensor("t", huge, 0, 0); }, 32),
      "product of its dimensions overflows");
  add("bytes_overflow", one_tensor([](Bytes& b) { b.tensor("t", 1ull << 62, 0, 0); }, 32),
      "size in bytes overflows");
  add("row_not_whole_blocks", one_tensor([](Bytes& b) { b.tensor("t", 100, 12, 0); }, 200),
      "q4_k needs a multiple of 256");
  add("type_999", one_tensor([](Bytes& b) { b.tensor("t", 4, 999, 0); }, 32), "type id 999 is unknown",
      ErrorCode::kRefused);
  add("type_mxfp4", one_tensor([](Bytes& b) { b.tensor("t", 32, 39, 0); }, 32), "mxfp4", ErrorCode::kRefused);
  for (uint32_t id : {44u, 45u, 46u, 47u, 48u, 49u, 50u, 64u, 69u})
    add("type_of_a_fork", one_tensor([=](Bytes& b) { b.tensor("t", 256, id, 0); }, 512),
        "required: general.quantized_by = kvasir; found: no such key", ErrorCode::kRefused);
  add("type_of_a_fork_signed",
      Bytes()
          .header(1, 1)
          .key_string("general.quantized_by", "someone")
          .tensor("t", 256, 45, 0)
          .pad()
          .zeros(512)
          .str(),
      "found: another program", ErrorCode::kRefused);
  add("offset_unaligned", one_tensor([](Bytes& b) { b.tensor("t", 4, 0, 16); }, 64),
      "not a multiple of the alignment 32");
  add("offset_beyond_file", one_tensor([](Bytes& b) { b.tensor("t", 4, 0, 1 << 20); }, 64),
      "it is cut short or damaged");
  add("offset_huge", one_tensor([](Bytes& b) { b.tensor("t", 4, 0, 0xffffffffffffffe0ull); }, 64),
      "it is cut short or damaged");
  add("data_cut_short", one_tensor([](Bytes& b) { b.tensor("t", 64, 0, 0); }, 255),
      "needs 256 bytes from byte 64 on");
  add("no_data_at_all", Bytes().header(1, 0).tensor("t", 4, 0, 0).str(), "needs 16 bytes");
  add("overlap", Bytes().header(2, 0).tensor("a", 16, 0, 0).tensor("b", 4, 0, 32).pad().zeros(96).str(),
      "'a' and 'b' overlap");
  add("same_place", Bytes().header(2, 0).tensor("a", 4, 0, 0).tensor("b", 4, 0, 0).pad().zeros(96).str(),
      "overlap");
  // Splits.
  add("split_in_a_whole_name", Bytes().header(0, 1).key_u32("split.count", 3).str(),
      "must end in -00001-of-00003.gguf");
  add("split_count_huge", Bytes().header(0, 1).key_u32("split.count", 0xffffffff).str(),
      "at most 99999 parts");
  return rows;
}

std::string refusal(const std::string& path, ErrorCode* code = nullptr) {
  try {
    File::open(path);
  } catch (const Error& error) {
    if (code) *code = error.code();
    return error.what();
  }
  return {};
}

TEST(Hostile, EveryFileIsRefusedWithItsReason) {
  const test::TempFolder folder;
  const auto rows = corpus();
  EXPECT_GE(rows.size(), 40u);
  for (const Hostile& row : rows) {
    const std::string path = folder.file("hostile.gguf");
    test::write_file(path, row.bytes);
    ErrorCode code{};
    const std::string message = refusal(path, &code);
    EXPECT_NE(message.find(row.message), std::string::npos) << row.name << ": " << message;
    EXPECT_EQ(int(code), int(row.code)) << row.name;
    EXPECT_EQ(message.rfind(path, 0), 0u) << row.name << ": the message starts with the file: " << message;
  }
}

// Cutting a valid file anywhere must give an error, never a crash; likewise flipping any byte may only give
// an error or a file.
TEST(Hostile, EveryTruncationIsRefused) {
  const test::TempFolder folder;
  const std::string whole = Bytes()
                                .header(2, 3)
                                .key_string("general.architecture", "gemma4")
                                .key_u32("gemma4.block_count", 2)
                                .string("tokenizer.ggml.tokens")
                                .u32(9)
                                .u32(8)
                                .u64(3)
                                .string("a")
                                .string("bb")
                                .string("")
                                .tensor("a", 64, 0, 0)
                                .tensor("b", 32, 8, 256)
                                .pad()
                                .zeros(256 + 34)
                                .str();
  const std::string path = folder.file("cut.gguf");
  test::write_file(path, whole);
  EXPECT_EQ(refusal(path), "");
  for (size_t n = 1; n < whole.size(); ++n) {
    test::write_file(path, std::string_view(whole).substr(0, n));
    EXPECT_NE(refusal(path), "") << n;
  }
  for (size_t at = 0; at < whole.size() - 290; ++at) {
    for (uint8_t flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = char(uint8_t(damaged[at]) ^ flip);
      test::write_file(path, damaged);
      refusal(path);
    }
  }
}

TEST(Hostile, PathsThatAreNoFiles) {
  const test::TempFolder folder;
  EXPECT_NE(refusal(folder.folder()).find("directory"), std::string::npos);
  EXPECT_NE(refusal(folder.file("absent.gguf")).find("No such file"), std::string::npos);
  test::write_file(folder.file("empty.gguf"), "");
  EXPECT_NE(refusal(folder.file("empty.gguf")).find("empty"), std::string::npos);
  EXPECT_NE(refusal("/dev/null"), "");
}

std::string part(uint32_t no, uint32_t count, std::string_view tensor, uint32_t n_tensors = 2) {
  return Bytes()
      .header(1, 3)
      .key_u32("split.no", no)
      .key_u32("split.count", count)
      .key_u32("split.tensors.count", n_tensors)
      .tensor(tensor, 8, 0, 0)
      .pad()
      .zeros(32)
      .str();
}

TEST(Hostile, SplitsThatDoNotFitTogether) {
  const test::TempFolder folder;
  const std::string first = folder.file("m-00001-of-00002.gguf"),
                    second = folder.file("m-00002-of-00002.gguf");
  test::write_file(first, part(0, 2, "a"));
  EXPECT_NE(refusal(first).find("part 2 of 2 is missing"), std::string::npos);
  test::write_file(second, part(1, 2, "a"));
  EXPECT_NE(refusal(first).find("also in an earlier part"), std::string::npos);
  test::write_file(second, part(0, 2, "b"));
  EXPECT_NE(refusal(first).find("say 0 and 2; its name says 1 and 2"), std::string::npos);
  test::write_file(second, part(1, 2, "b", 2));
  EXPECT_EQ(refusal(first), "");
  EXPECT_EQ(refusal(second), "") << "any part may be named";
  test::write_file(first, part(0, 2, "a", 9));
  EXPECT_NE(refusal(first).find("'split.tensors.count' is 9"), std::string::npos);
  test::write_file(first, Bytes().header(0, 0).str());
  EXPECT_NE(refusal(first).find("no key 'split.count'"), std::string::npos);
  const std::string out_of_range = folder.file("m-00003-of-00002.gguf");
  test::write_file(out_of_range, part(2, 2, "c"));
  EXPECT_NE(refusal(out_of_range).find("its name must end in"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::gguf
