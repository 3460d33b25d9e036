// Token texts in error messages.
#pragma once
#include <string>
#include <string_view>

namespace kvasir::text {

// In single quotes; control characters and bytes that are not UTF-8 as \xNN; cut after about 40 bytes.
std::string quote(std::string_view text);

}  // namespace kvasir::text
