# libkvasir, shared and static: everything under src/ behind the C API of include/kvasir/kvasir.h.
# Only functions named kvasir_* leave the shared library.
kvasir_library(kvasir_api api kvasir_engine kvasir_build_info nlohmann_json::nlohmann_json)
if(NOT TARGET kvasir_api)
  return()
endif()
target_include_directories(kvasir_api PUBLIC ${CMAKE_SOURCE_DIR}/include)

set(objects "")
foreach(part api engine models decide quantize speech verify registry cpu cuda cuda_kernels graph text gguf formats base)
  if(TARGET kvasir_${part})
    list(APPEND objects $<TARGET_OBJECTS:kvasir_${part}>)
  endif()
endforeach()

foreach(kind shared static)
  string(TOUPPER ${kind} type)
  add_library(kvasir_${kind} ${type} ${objects})
  # kvasir_flags carries the sanitizers of a sanitized build; an installed package must not ask for it.
  target_link_libraries(kvasir_${kind} PRIVATE fmt::fmt OpenSSL::Crypto Threads::Threads $<BUILD_INTERFACE:kvasir_flags>)
  if(KVASIR_HAVE_CUDA)
    target_link_libraries(kvasir_${kind} PRIVATE CUDA::cudart_static)
  endif()
  target_include_directories(kvasir_${kind} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(kvasir_${kind} PROPERTIES OUTPUT_NAME kvasir LINKER_LANGUAGE CXX)
endforeach()
set_target_properties(kvasir_shared PROPERTIES EXPORT_NAME kvasir VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/exports.map)
if(UNIX AND NOT APPLE)
  target_link_options(kvasir_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/exports.map)
  if(NOT KVASIR_SANITIZE)
    target_link_options(kvasir_shared PRIVATE -Wl,--no-undefined)
  endif()
endif()
