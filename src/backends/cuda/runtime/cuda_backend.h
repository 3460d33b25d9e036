// The CUDA backend.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "backends/backend.h"

namespace kvasir::cuda {

// Why no backend can be created here (no driver, no device, one too old); empty when one can.
std::string device_problem();

// On the first device, with its best kernels or those named by `isa`: "sm_80", what every device since then runs.
// Throws Error{kNoDevice} with device_problem(), Error{kUsage} for another name.
std::unique_ptr<backends::Backend> create_backend(std::string_view isa = "");

// Bytes/s of a device-to-device copy of 2 GiB (less where memory is short), read and written bytes counted:
// the median of 10.
double measure_copy_rate();

}  // namespace kvasir::cuda
