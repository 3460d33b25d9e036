# The CUDA backend: host files by the C++ compiler, kernels by nvcc in a library of their own (kvasir_flags are for g++).
file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/backends/cuda/*.cu)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/backends/cuda/*.cpp)
add_library(kvasir_cuda_kernels OBJECT ${cuda_kernels})
target_include_directories(kvasir_cuda_kernels PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(kvasir_cuda_kernels PRIVATE --expt-relaxed-constexpr)
set(sm_90a "")
if(KVASIR_CUDA_ARCHITECTURES MATCHES "90a")
  set(sm_90a KVASIR_SM_90A)
endif()
target_compile_definitions(kvasir_cuda_kernels PRIVATE ${sm_90a})
string(REPLACE ";" " " cuda_architectures "${KVASIR_CUDA_ARCHITECTURES}")
# Codec bytes must equal the scalar codec's: no fused multiply-add there.
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/backends/cuda/kernels/kv_append/kv_append.cu
                            PROPERTIES COMPILE_OPTIONS "-fmad=false")
add_library(kvasir_cuda STATIC ${cuda_sources} $<TARGET_OBJECTS:kvasir_cuda_kernels>)
target_compile_definitions(kvasir_cuda PRIVATE KVASIR_CUDA_ARCHITECTURES="${cuda_architectures}" ${sm_90a})
target_include_directories(kvasir_cuda PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(kvasir_cuda PUBLIC kvasir_flags kvasir_graph CUDA::cudart_static)
