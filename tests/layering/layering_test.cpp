// Dependencies point down only, the library stays quiet, files stay short. Each rule is also shown to find a
// planted fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Tree = std::map<std::string, std::string>;  // path from the root of the tree -> text
using Faults = std::vector<std::string>;          // "path:line: what is wrong"

constexpr int kMaxLines = 800;

// Layer -> layers it may include. A layer may always include itself.
const std::map<std::string, std::set<std::string>>& rules() {
  static const std::map<std::string, std::set<std::string>> kRules = [] {
    using Set = std::set<std::string>;
    const Set base = {"base"};
    const Set data = {"base", "tensor", "formats"};
    const Set graph_and_below = {"base", "tensor", "formats", "graph"};
    Set backend = graph_and_below;
    backend.insert("backends");
    const Set engine = {"base",  "tensor",   "formats", "gguf",   "text",
                        "graph", "backends", "models",  "decide", "backends/registry"};
    Set above_engine = engine;
    above_engine.insert("engine");
    Set api = above_engine;
    api.insert({"speech", "quantize", "verify", "api", "backends/cpu", "backends/cuda", "backends/vulkan",
                "backends/metal"});
    Set program = api;
    program.insert({"include", "serve"});
    return std::map<std::string, Set>{
        {"base", {}},
        {"tensor", base},
        {"formats", {"base", "tensor"}},
        {"gguf", data},
        {"text", data},
        {"graph", data},
        {"backends", {"base", "tensor", "graph"}},  // backends/backend.h
        {"backends/cpu", backend},
        {"backends/cuda", backend},
        {"backends/vulkan", backend},
        {"backends/metal", backend},
        {"backends/registry",
         {"base", "backends", "backends/cpu", "backends/cuda", "backends/vulkan", "backends/metal"}},
        {"models", {"graph", "gguf", "tensor", "base"}},
        {"decide", {"graph", "tensor", "formats", "gguf", "base"}},
        {"engine", engine},
        {"quantize", {"gguf", "formats", "tensor", "base"}},
        {"speech", above_engine},
        {"verify",
         [&] {
           Set set = above_engine;
           set.insert("verify/reference");
           return set;
         }()},
        {"verify/reference", {"base", "tensor"}},  // shares no code or constant with what it checks
        {"api",
         [&] {
           Set set = api;
           set.insert("include");
           return set;
         }()},
        {"serve",
         [&] {
           Set set = api;
           set.insert("include");
           return set;
         }()},
        {"apps", program},
        {"include", {}},
    };
  }();
  return kRules;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// "src/backends/cpu/runtime/x.cpp" -> "backends/cpu"; "src/backends/backend.h" -> "backends";
// "apps/kvasir/x.h" -> "apps".
std::string layer_of(std::string_view path) {
  if (starts_with(path, "apps/")) return "apps";
  if (starts_with(path, "include/")) return "include";
  if (!starts_with(path, "src/")) return "";
  path.remove_prefix(4);
  const std::string folder(path.substr(0, path.rfind('/')));
  if (starts_with(path, "verify/reference/")) return "verify/reference";
  const size_t first = folder.find('/');
  if (starts_with(path, "backends/") && first != std::string::npos)
    return folder.substr(0, folder.find('/', first + 1));
  return folder.substr(0, first);
}

// Comments become spaces and literals lose their content; line breaks stay, and include lines keep their
// path.
std::string code_of(std::string_view text) {
  std::string code;
  const auto skip_to = [&](size_t& i, size_t end) {
    for (; i < end; ++i) code += text[i] == '\n' ? '\n' : ' ';
  };
  for (size_t i = 0; i < text.size();) {
    const size_t line_start = text.rfind('\n', i) == std::string_view::npos ? 0 : text.rfind('\n', i) + 1;
    const bool directive =
        text.substr(line_start, i - line_start).find("#include") != std::string_view::npos ||
        text.substr(line_start, i - line_start).find("# include") != std::string_view::npos;
    if (starts_with(text.substr(i), "//")) {
      skip_to(i, std::min(text.find('\n', i), text.size()));
    } else if (starts_with(text.substr(i), "/*")) {
      const size_t end = text.find("*/", i + 2);
      skip_to(i, end == std::string_view::npos ? text.size() : end + 2);
    } else if (starts_with(text.substr(i), "R\"")) {
      const size_t open = text.find('(', i);
      const std::string close = ")" + std::string(text.substr(i + 2, open - i - 2)) + "\"";
      const size_t end = text.find(close, i);
      skip_to(i, end == std::string_view::npos ? text.size() : end + close.size());
    } else if (text[i] == '"' && !directive) {
      code += text[i++];
      while (i < text.size() && text[i] != '"' && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
    } else if (text[i] == '\'' && i > 0 && !std::isalnum(static_cast<unsigned char>(text[i - 1]))) {
      code += text[i++];  // a character literal, not a digit separator
      while (i < text.size() && text[i] != '\'' && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
      if (i < text.size() && text[i] == '\'') ++i;
    } else {
      code += text[i++];
    }
  }
  return code;
}

struct Include {
  int line = 0;
  std::string path;
  bool quoted = false;
};

template <typename Visit>
void for_each_line(std::string_view text, Visit visit) {
  int number = 1;
  for (size_t start = 0; start <= text.size(); ++number) {
    const size_t end = std::min(text.find('\n', start), text.size());
    visit(number, text.substr(start, end - start));
    start = end + 1;
  }
}

std::vector<Include> includes_of(std::string_view text) {
  std::vector<Include> found;
  const std::string code = code_of(text);
  for_each_line(code, [&](int number, std::string_view line) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string_view::npos || line[at] != '#') return;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string_view::npos || !starts_with(line.substr(at), "include")) return;
    const size_t open = line.find_first_of("\"<", at);
    if (open == std::string_view::npos) return;
    const size_t close = line.find_first_of("\">", open + 1);
    if (close == std::string_view::npos) return;
    found.push_back({number, std::string(line.substr(open + 1, close - open - 1)), line[open] == '"'});
  });
  return found;
}

std::string place(const std::string& path, int line) { return path + ":" + std::to_string(line) + ": "; }

// Where an include of `path` written in `from` points, as a path of the tree; empty when it is not in the
// tree.
std::string resolve(const Tree& tree, const std::string& from, const std::string& path) {
  const std::string sibling = from.substr(0, from.rfind('/') + 1) + path;
  for (const std::string& candidate :
       {sibling, "src/" + path, "include/" + path, "apps/kvasir/" + path, path})
    if (tree.count(candidate)) return candidate;
  return "";
}

bool is_source(std::string_view path) {
  for (std::string_view suffix : {".h", ".hpp", ".cpp", ".cu", ".cuh", ".def", ".inc"})
    if (ends_with(path, suffix)) return true;
  return false;
}

Faults check_includes(const Tree& tree) {
  static const std::set<std::string> kGenerated = {"build_info.h"};
  Faults faults;
  for (const auto& [path, text] : tree) {
    const std::string layer = layer_of(path);
    if (layer.empty() || !is_source(path)) continue;
    const auto rule = rules().find(layer);
    if (rule == rules().end()) {
      faults.push_back(place(path, 1) + "folder '" + layer + "' has no rule");
      continue;
    }
    for (const Include& include : includes_of(text)) {
      const std::string target = resolve(tree, path, include.path);
      if (include.path.find("..") != std::string::npos) {
        faults.push_back(place(path, include.line) + "include \"" + include.path +
                         "\" is not written from src/");
      } else if (target.empty()) {
        if (include.quoted && !kGenerated.count(include.path))
          faults.push_back(place(path, include.line) + "include \"" + include.path + "\" is not in the tree");
      } else if (const std::string to = layer_of(target); to != layer && !rule->second.count(to)) {
        faults.push_back(place(path, include.line) + layer + " may not include " + to + " (\"" +
                         include.path + "\")");
      }
    }
  }
  return faults;
}

// Vendor interfaces belong to backends/X/runtime. The headers of the device language itself are for that
// backend's kernels.
Faults check_vendor_headers(const Tree& tree) {
  static const std::array kVendor = {"cuda",  "cublas", "nvrtc", "nccl", "nvml",
                                     "cudnn", "vulkan", "Metal", "vk_",  "hip/"};
  static const std::set<std::string> kLanguage = {"cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"};
  Faults faults;
  for (const auto& [path, text] : tree) {
    if (layer_of(path).empty() || !is_source(path)) continue;
    const bool runtime = starts_with(path, "src/backends/") && path.find("/runtime/") != std::string::npos;
    for (const Include& include : includes_of(text)) {
      const bool vendor = std::any_of(kVendor.begin(), kVendor.end(),
                                      [&](const char* prefix) { return starts_with(include.path, prefix); });
      if (!vendor || runtime || !resolve(tree, path, include.path).empty()) continue;
      if (kLanguage.count(include.path) && starts_with(path, "src/backends/cuda/")) continue;
      faults.push_back(place(path, include.line) + "vendor header <" + include.path +
                       "> outside backends/X/runtime");
    }
  }
  return faults;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Positions just behind each whole-word `name` that is not a member of some object.
std::vector<size_t> ends_of(std::string_view line, std::string_view name) {
  std::vector<size_t> ends;
  for (size_t at = line.find(name); at != std::string_view::npos; at = line.find(name, at + 1)) {
    const size_t end = at + name.size();
    const std::string_view before = line.substr(0, at);
    const bool whole =
        (before.empty() || !is_word(before.back())) && (end == line.size() || !is_word(line[end]));
    if (whole && !ends_with(before, ".") && !ends_with(before, "->")) ends.push_back(end);
  }
  return ends;
}

bool has_word(std::string_view line, std::string_view name) { return !ends_of(line, name).empty(); }

bool has_call(std::string_view line, std::string_view name) {
  for (size_t end : ends_of(line, name)) {
    const size_t next = line.find_first_not_of(' ', end);
    if (next != std::string_view::npos && line[next] == '(') return true;
  }
  return false;
}

Faults check_quiet_library(const Tree& tree) {
  static const std::array kCalls = {"printf", "fprintf",    "vprintf", "vfprintf",      "puts",
                                    "fputs",  "putchar",    "perror",  "exit",          "_exit",
                                    "_Exit",  "quick_exit", "getenv",  "secure_getenv", "setenv"};
  static const std::array kNames = {"std::cout", "std::cerr", "std::clog", "stdout",
                                    "stderr",    "environ",   "fmt::print"};
  Faults faults;
  for (const auto& [path, text] : tree) {
    if (!starts_with(path, "src/") || !is_source(path)) continue;
    for_each_line(code_of(text), [&](int number, std::string_view line) {
      for (const char* call : kCalls)
        if (has_call(line, call)) faults.push_back(place(path, number) + "the library may not call " + call);
      for (const char* name : kNames)
        if (has_word(line, name)) faults.push_back(place(path, number) + "the library may not use " + name);
    });
  }
  return faults;
}

Faults check_lengths(const Tree& tree) {
  Faults faults;
  for (const auto& [path, text] : tree) {
    const long n_lines = std::count(text.begin(), text.end(), '\n');
    if (n_lines > kMaxLines)
      faults.push_back(place(path, kMaxLines) + std::to_string(n_lines) + " lines, at most " +
                       std::to_string(kMaxLines));
  }
  return faults;
}

// Everything a person edits. Data (models, corpora, JSON) does not count.
Tree read_tree() {
  namespace fs = std::filesystem;
  const fs::path root = KVASIR_SOURCE_DIR;
  static const std::set<std::string> kExtensions = {".h",     ".hpp",  ".cpp",   ".cu", ".cuh",
                                                    ".def",   ".inc",  ".py",    ".sh", ".txt",
                                                    ".cmake", ".comp", ".metal", ""};
  Tree tree;
  for (const char* folder : {"src", "apps", "include", "bench", "tests", "tools"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path path = fs::relative(entry.path(), root);
      if (!entry.is_regular_file() || path.string().find("/corpus/") != std::string::npos) continue;
      if (!kExtensions.count(path.extension().string())) continue;
      if (path.extension() == ".txt" && path.filename() != "CMakeLists.txt") continue;
      std::ifstream file(entry.path(), std::ios::binary);
      tree[path.generic_string()] = {std::istreambuf_iterator<char>(file), {}};
    }
  }
  return tree;
}

std::string joined(const Faults& faults) {
  std::string text;
  for (const std::string& fault : faults) text += fault + "\n";
  return text;
}

TEST(Layering, IncludesPointDown) { EXPECT_EQ(joined(check_includes(read_tree())), ""); }
TEST(Layering, VendorHeadersOnlyInRuntimes) { EXPECT_EQ(joined(check_vendor_headers(read_tree())), ""); }
TEST(Layering, LibraryNeverPrintsExitsOrReadsTheEnvironment) {
  EXPECT_EQ(joined(check_quiet_library(read_tree())), "");
}
TEST(Layering, FilesStayShort) { EXPECT_EQ(joined(check_lengths(read_tree())), ""); }

TEST(Layering, TreeIsReadWhole) {
  const Tree tree = read_tree();
  EXPECT_TRUE(tree.count("src/base/error.h"));
  EXPECT_TRUE(tree.count("tests/layering/layering_test.cpp"));
  EXPECT_TRUE(tree.count("tools/deps.sh"));
}

TEST(LayeringSelfTest, LayerOfAPath) {
  EXPECT_EQ(layer_of("src/base/error.h"), "base");
  EXPECT_EQ(layer_of("src/backends/backend.h"), "backends");
  EXPECT_EQ(layer_of("src/backends/cpu/kernels/matmul/matmul.h"), "backends/cpu");
  EXPECT_EQ(layer_of("src/backends/cpu/x.h"), "backends/cpu");
  EXPECT_EQ(layer_of("src/verify/compare.h"), "verify");
  EXPECT_EQ(layer_of("src/verify/reference/codec.h"), "verify/reference");
  EXPECT_EQ(layer_of("apps/kvasir/main.cpp"), "apps");
  EXPECT_EQ(layer_of("tests/x_test.cpp"), "");
}

// The planted include is found when `from` includes `to`, and only then.
Faults include_fault(const std::string& from, const std::string& to) {
  const std::string written = starts_with(to, "apps/") ? to : to.substr(to.find('/') + 1);
  return check_includes({{from, "#pragma once\n#include \"" + written + "\"\n"}, {to, "#pragma once\n"}});
}

TEST(LayeringSelfTest, UpwardIncludesAreFound) {
  const std::vector<std::pair<std::string, std::string>> kUpward = {
      {"src/base/a.cpp", "src/tensor/b.h"},
      {"src/base/a.cpp", "src/formats/b.h"},
      {"src/formats/a.cpp", "src/gguf/b.h"},
      {"src/text/a.cpp", "src/gguf/b.h"},
      {"src/graph/a.cpp", "src/backends/backend.h"},
      {"src/backends/cpu/a.cpp", "src/backends/cuda/b.h"},
      {"src/backends/cpu/a.cpp", "src/models/b.h"},
      {"src/backends/cpu/a.cpp", "src/engine/b.h"},
      {"src/backends/backend.h", "src/formats/b.h"},
      {"src/models/a.cpp", "src/formats/b.h"},
      {"src/models/a.cpp", "src/backends/backend.h"},
      {"src/engine/a.cpp", "src/backends/cpu/b.h"},
      {"src/engine/a.cpp", "src/api/b.h"},
      {"src/decide/a.cpp", "src/engine/b.h"},
      {"src/verify/reference/a.cpp", "src/formats/b.h"},
      {"src/verify/reference/a.cpp", "src/verify/compare.h"},
      {"src/verify/reference/a.cpp", "src/graph/b.h"},
      {"src/engine/a.cpp", "src/verify/reference/b.h"},
      {"src/verify/reference/a.cpp", "src/backends/backend.h"},
      {"src/api/a.cpp", "src/serve/b.h"},
      {"src/serve/a.cpp", "apps/kvasir/b.h"},
      {"include/kvasir/a.h", "src/base/b.h"}};
  for (const auto& [from, to] : kUpward)
    EXPECT_EQ(include_fault(from, to).size(), 1u) << from << " -> " << to;
}

TEST(LayeringSelfTest, DownwardIncludesPass) {
  const std::vector<std::pair<std::string, std::string>> kDownward = {
      {"src/tensor/a.h", "src/base/b.h"},
      {"src/formats/a.h", "src/tensor/dtype.h"},
      {"src/gguf/a.cpp", "src/formats/b.h"},
      {"src/graph/a.cpp", "src/formats/b.h"},
      {"src/backends/cpu/a.cpp", "src/backends/backend.h"},
      {"src/backends/cpu/a.cpp", "src/graph/b.h"},
      {"src/backends/cpu/kernels/x/a.cpp", "src/backends/cpu/runtime/b.h"},
      {"src/models/a.cpp", "src/gguf/b.h"},
      {"src/engine/a.cpp", "src/backends/backend.h"},
      {"src/engine/a.cpp", "src/decide/b.h"},
      {"src/verify/a.cpp", "src/engine/b.h"},
      {"src/verify/checks/a.cpp", "src/verify/reference/b.h"},
      {"src/api/a.cpp", "src/verify/b.h"},
      {"src/api/a.cpp", "include/kvasir/kvasir.h"},
      {"apps/kvasir/a.cpp", "src/serve/b.h"}};
  for (const auto& [from, to] : kDownward)
    EXPECT_EQ(joined(include_fault(from, to)), "") << from << " -> " << to;
}

TEST(LayeringSelfTest, OddIncludesAreFound) {
  EXPECT_EQ(check_includes({{"src/base/a.h", "#include \"../formats/b.h\"\n"}}).size(), 1u);
  EXPECT_EQ(check_includes({{"src/base/a.h", "#include \"nowhere.h\"\n"}}).size(), 1u);
  EXPECT_EQ(check_includes({{"src/newfolder/a.h", "int a;\n"}}).size(), 1u);
  EXPECT_EQ(check_includes({{"src/base/a.h", "#  include <formats/b.h>\n"}, {"src/formats/b.h", ""}}).size(),
            1u);
  EXPECT_EQ(
      joined(check_includes({{"src/base/a.h", "// #include \"formats/b.h\"\n"}, {"src/formats/b.h", ""}})),
      "");
  EXPECT_EQ(joined(check_includes(
                {{"src/base/a.h", "/*\n#include \"formats/b.h\"\n*/\n"}, {"src/formats/b.h", ""}})),
            "");
}

TEST(LayeringSelfTest, VendorHeadersAreFound) {
  EXPECT_EQ(check_vendor_headers({{"src/engine/a.cpp", "#include <cuda_runtime.h>\n"}}).size(), 1u);
  EXPECT_EQ(check_vendor_headers({{"src/backends/cuda/kernels/a.cu", "#include <cuda.h>\n"}}).size(), 1u);
  EXPECT_EQ(check_vendor_headers({{"src/backends/vulkan/a.cpp", "#include <vulkan/vulkan.h>\n"}}).size(), 1u);
  EXPECT_EQ(
      joined(check_vendor_headers({{"src/backends/cuda/runtime/a.cpp", "#include <cuda_runtime.h>\n"},
                                   {"src/backends/cuda/kernels/a.cu", "#include <cuda_fp16.h>\n"},
                                   {"src/backends/vulkan/runtime/a.cpp", "#include <vulkan/vulkan.h>\n"}})),
      "");
}

TEST(LayeringSelfTest, LoudLibraryCodeIsFound) {
  for (const char* line :
       {"std::printf(\"x\");", "  printf (\"x\");", "fprintf(stderr, \"x\");", "std::cout << 1;",
        "std::cerr << 1;", "exit(1);", "std::exit(1);", "getenv(\"HOME\");", "fmt::print(\"x\");"}) {
    EXPECT_FALSE(check_quiet_library({{"src/engine/a.cpp", std::string("int a;\n") + line + "\n"}}).empty())
        << line;
    EXPECT_EQ(joined(check_quiet_library({{"apps/kvasir/a.cpp", line}})), "") << line;
  }
  for (const char* line : {"snprintf(b, n, \"x\");", "// printf(\"x\")", "fail(code, \"exit(1)\");",
                           "loop.exit();", "int exit_code = 0;", "const char* s = R\"(exit(1))\";",
                           "on_exit_called(1);", "'\"'; exits(1);", "int n = 1'000; /* getenv( */"})
    EXPECT_EQ(joined(check_quiet_library({{"src/engine/a.cpp", line}})), "") << line;
}

TEST(LayeringSelfTest, LongFilesAreFound) {
  EXPECT_EQ(check_lengths({{"src/a.cpp", std::string(kMaxLines + 1, '\n')}}).size(), 1u);
  EXPECT_EQ(joined(check_lengths({{"src/a.cpp", std::string(kMaxLines, '\n')}})), "");
}

}  // namespace
