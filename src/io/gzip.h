// gzip by zlib. The same text gives the same bytes (no time stamp).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stowage::io {

std::string gzip(std::string_view text);

// Throws Error when the data is damaged or truncated, is followed by something that is no gzip member, or holds more
// than `limit` bytes (a small file can hold a thousand times its size).
std::string gunzip(std::string_view data, std::size_t limit);

}  // namespace stowage::io
