# Writes build_info.h: what was built, from what, with what. Run at every build; the file is rewritten only when it changes.
# -DSOURCE_DIR -DOUTPUT -DVERSION -DCOMPILER -DFLAGS
cmake_minimum_required(VERSION 3.25)

# The commit counts only if the tree is its own repository: an unpacked release inside another repository has none.
set(commit "unknown")
if(EXISTS "${SOURCE_DIR}/.git")
  execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY "${SOURCE_DIR}"
                  OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
  if(result EQUAL 0 AND head)
    set(commit "${head}")
    execute_process(COMMAND git diff --quiet HEAD -- WORKING_DIRECTORY "${SOURCE_DIR}" RESULT_VARIABLE dirty
                    OUTPUT_QUIET ERROR_QUIET)
    if(dirty)
      string(APPEND commit "-dirty")
    endif()
  endif()
endif()

# One SHA-256 over the name and content of every source that decides what a kernel computes.
set(listing "compiler ${COMPILER}\nflags ${FLAGS}\n")
foreach(folder src/formats src/graph src/backends/cpu)
  file(GLOB_RECURSE files RELATIVE "${SOURCE_DIR}" "${SOURCE_DIR}/${folder}/*.h" "${SOURCE_DIR}/${folder}/*.cpp"
       "${SOURCE_DIR}/${folder}/*.def" "${SOURCE_DIR}/${folder}/*.inc")
  list(SORT files)
  foreach(file IN LISTS files)
    file(SHA256 "${SOURCE_DIR}/${file}" digest)
    string(APPEND listing "${digest} ${file}\n")
  endforeach()
endforeach()
string(SHA256 kernel_hash "${listing}")

file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// Generated at build by cmake/build_info.cmake.
#pragma once

namespace kvasir::build_info {

inline constexpr const char* kVersion = "@VERSION@";
inline constexpr const char* kCommit = "@commit@";  // "unknown" outside a git checkout; "-dirty" with local changes
// SHA-256 over src/formats, src/graph, src/backends/cpu, the compiler and its flags.
inline constexpr const char* kKernelHash = "@kernel_hash@";
inline constexpr const char* kCompiler = "@COMPILER@";
inline constexpr const char* kFlags = "@FLAGS@";

}  // namespace kvasir::build_info
]])
