# kvasir_build_info: link it and #include "build_info.h" for version, commit, kernel hash, compiler and flags.
# Include it after every compile option is known.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
get_target_property(common_flags kvasir_flags INTERFACE_COMPILE_OPTIONS)
separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}")
list(APPEND flags -std=c++${CMAKE_CXX_STANDARD} ${common_flags})
list(FILTER flags EXCLUDE REGEX "/")  # records carry no path of the build machine
foreach(isa IN LISTS KVASIR_ISAS)
  list(APPEND flags "[${isa}]" ${KVASIR_FLAGS_${isa}})
endforeach()
string(REPLACE ";" " " flags "${flags}")
string(REGEX REPLACE "\\$<\\$<COMPILE_LANGUAGE:CXX>:([^>]*)>" "\\1" flags "${flags}")

set(cuda_compiler "")
if(KVASIR_HAVE_CUDA)
  set(cuda_compiler "${CMAKE_CUDA_COMPILER_ID} ${CMAKE_CUDA_COMPILER_VERSION} for ${KVASIR_CUDA_ARCHITECTURES}")
endif()
set(header ${CMAKE_BINARY_DIR}/generated/build_info.h)
add_custom_target(kvasir_build_info_header
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${header} -DVERSION=${PROJECT_VERSION}
          "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_SYSTEM_PROCESSOR}"
          "-DFLAGS=${flags}" "-DCUDA_COMPILER=${cuda_compiler}" -P ${CMAKE_SOURCE_DIR}/cmake/build_info.cmake
  BYPRODUCTS ${header} COMMENT "" VERBATIM)
add_library(kvasir_build_info INTERFACE)
target_include_directories(kvasir_build_info INTERFACE ${CMAKE_BINARY_DIR}/generated)
add_dependencies(kvasir_build_info kvasir_build_info_header)
