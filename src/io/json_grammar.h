// Is this text one JSON object? For "meta", which is carried along as it stands, so that nothing else ever parses it.
#pragma once

#include <string_view>

namespace stowage::io {

// `text` must be valid UTF-8. Objects and arrays nested deeper than 64 are refused. O(n).
bool is_json_object(std::string_view text);

}  // namespace stowage::io
