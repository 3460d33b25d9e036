// Transcripts: command lines with what they must print and return, as data. One case a block, blocks
// separated by a blank line, '#' begins a comment line:
//
//   $ kvasir run -t 0 -p hi        run by bash in an empty folder that holds the fixture files; $MODELS is
//   models/ exit 2                          the exit code (0 when absent) err -t 0: must be stderr contains
//   this out text                        stdout contains this no-out text / no-err text       ... does not
//   contain this out-is text                     stdout without its last newline is exactly this json
//   /model/arch "gemma4"       stdout is JSON and has this at this JSON pointer; without a value: anything
//   there
#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace kvasir::cli_test {

namespace fs = std::filesystem;

struct Expectation {
  std::string kind, text;
};

struct Case {
  std::string file, command;
  int line = 0;
  int exit_code = 0;
  std::vector<Expectation> expectations;
  friend std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.command; }
};

inline std::vector<Case> read_transcript(const fs::path& path) {
  std::ifstream in(path);
  std::vector<Case> cases;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("$ ")) {
      cases.push_back({path.stem().string(), line.substr(2), number, 0, {}});
      continue;
    }
    const size_t space = std::min(line.find(' '), line.size());
    const std::string kind = line.substr(0, space), text = line.substr(std::min(space + 1, line.size()));
    if (kind == "exit")
      cases.back().exit_code = std::atoi(text.c_str());
    else
      cases.back().expectations.push_back({kind, text});
  }
  return cases;
}

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

#ifdef __SANITIZE_ADDRESS__  // in the program, too: verification takes ten times as long
inline constexpr int kCaseSeconds = 900;
#else
inline constexpr int kCaseSeconds = 120;
#endif

// Runs `command` with bash in `folder`; the built program is first in PATH. A case may take kCaseSeconds at most.
inline Outcome run_shell(const std::string& command, const fs::path& folder, const std::string& binary_dir,
                         const std::string& models) {
  const fs::path script = folder / "case.sh", out = folder / "case.out", err = folder / "case.err";
  std::ofstream(script, std::ios::binary)
      << "export PATH=" << binary_dir << ":$PATH MODELS=" << models
      << " XDG_CACHE_HOME=" << (folder / "cache-of-the-test").string() << "\ncd " << folder.string() << "\n"
      << command << "\n";
  const std::string line =
      "timeout " + std::to_string(kCaseSeconds) + " bash " + script.string() + " </dev/null >" + out.string() +
      " 2>" + err.string();
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(out), slurp(err)};
}

}  // namespace kvasir::cli_test
