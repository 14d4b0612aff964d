// The files of src/report/page, compiled in by embed.cmake.
#pragma once

#include <string_view>

namespace stowage::report {

extern const std::string_view kPageHtml;  // with {{NAME}} where the other parts go
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace stowage::report
