// The kernels' hash must change with any file it covers, and with compiler and flags, and with nothing else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

namespace fs = std::filesystem;

class KernelHash : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("kvasir-hash-" + std::to_string(getpid()));
    for (const char* file :
         {"src/formats/a.h", "src/graph/b.cpp", "src/backends/cpu/kernels/c.def", "src/engine/d.cpp",
          "src/backends/cuda/kernels/e.cu"})
      write(file, "one");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  // Of the CPU's kernels; with `nvcc`, of the CUDA backend's.
  std::string hash(const std::string& compiler = "cc 1", const std::string& flags = "-O2",
                   const std::string& nvcc = "") {
    const std::string output = (root_ / "build_info.h").string();
    const std::string command = "cmake -DSOURCE_DIR=" + root_.string() + " -DOUTPUT=" + output +
                                " -DVERSION=1 \"-DCOMPILER=" + compiler + "\" \"-DFLAGS=" + flags +
                                "\" \"-DCUDA_COMPILER=" + nvcc + "\" -P " KVASIR_SOURCE_DIR "/cmake/build_info.cmake";
    if (std::system(command.c_str()) != 0) return "cmake failed";
    std::ifstream file(output);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::string before = nvcc.empty() ? " kKernelHash = \"" : " kCudaKernelHash = \"";
    const size_t at = text.find(before);
    return at == text.npos ? "no hash" : text.substr(at + before.size(), 64);
  }

  fs::path root_;
};

TEST_F(KernelHash, FollowsWhatDecidesAResult) {
  const std::string first = hash();
  ASSERT_EQ(first.size(), 64u) << first;
  EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), first.npos);
  EXPECT_EQ(hash(), first);
  EXPECT_NE(hash("cc 2"), first);
  EXPECT_NE(hash("cc 1", "-O3"), first);
  write("src/engine/d.cpp", "two");
  EXPECT_EQ(hash(), first);
  for (const char* file : {"src/formats/a.h", "src/graph/b.cpp", "src/backends/cpu/kernels/c.def"}) {
    write(file, "two");
    EXPECT_NE(hash(), first) << file;
    write(file, "one");
    EXPECT_EQ(hash(), first) << file;
  }
  write("src/backends/cuda/kernels/e.cu", "two");
  EXPECT_EQ(hash(), first);
  write("src/backends/cpu/kernels/new.cpp", "");
  EXPECT_NE(hash(), first);
}

TEST_F(KernelHash, EachBackendHasItsOwn) {
  const auto cuda = [&](const std::string& nvcc = "nvcc 13") { return hash("cc 1", "-O2", nvcc); };
  const std::string first = cuda();
  ASSERT_EQ(first.size(), 64u) << first;
  EXPECT_NE(first, hash());
  EXPECT_NE(cuda("nvcc 14"), first);
  write("src/backends/cpu/kernels/c.def", "two");
  EXPECT_EQ(cuda(), first);
  for (const char* file : {"src/formats/a.h", "src/graph/b.cpp", "src/backends/cuda/kernels/e.cu"}) {
    write(file, "two");
    EXPECT_NE(cuda(), first) << file;
    write(file, "one");
    EXPECT_EQ(cuda(), first) << file;
  }
}

}  // namespace
