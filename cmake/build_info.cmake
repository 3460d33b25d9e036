# Writes build_info.h: what was built, from what, with what. Run at every build; the file is rewritten only when it changes.
# -DSOURCE_DIR -DOUTPUT -DVERSION -DCOMPILER -DFLAGS [-DCUDA_COMPILER: with that backend]
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

# One SHA-256 a backend over the name and content of every source that decides what its kernels compute.
function(hash_kernels out backend compiler)
  set(listing "compiler ${compiler}\nflags ${FLAGS}\n")
  foreach(folder src/formats src/graph src/backends/${backend})
    set(patterns "")
    foreach(ending h cpp def inc cu cuh)
      list(APPEND patterns "${SOURCE_DIR}/${folder}/*.${ending}")
    endforeach()
    file(GLOB_RECURSE files RELATIVE "${SOURCE_DIR}" ${patterns})
    list(SORT files)
    foreach(file IN LISTS files)
      file(SHA256 "${SOURCE_DIR}/${file}" digest)
      string(APPEND listing "${digest} ${file}\n")
    endforeach()
  endforeach()
  string(SHA256 hash "${listing}")
  set(${out} "${hash}" PARENT_SCOPE)
endfunction()
hash_kernels(kernel_hash cpu "${COMPILER}")
set(cuda_hash "")
if(CUDA_COMPILER)
  hash_kernels(cuda_hash cuda "${COMPILER}, ${CUDA_COMPILER}")
endif()

file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
// Generated at build by cmake/build_info.cmake.
#pragma once

namespace kvasir::build_info {

inline constexpr const char* kVersion = "@VERSION@";
inline constexpr const char* kCommit = "@commit@";  // "unknown" outside a git checkout; "-dirty" with local changes
// SHA-256 over src/formats, src/graph, src/backends/cpu, the compiler and its flags.
inline constexpr const char* kKernelHash = "@kernel_hash@";
// The same with src/backends/cuda and nvcc; empty without that backend.
inline constexpr const char* kCudaKernelHash = "@cuda_hash@";
inline constexpr const char* kCudaCompiler = "@CUDA_COMPILER@";
inline constexpr const char* kCompiler = "@COMPILER@";
inline constexpr const char* kFlags = "@FLAGS@";

}  // namespace kvasir::build_info
]])
