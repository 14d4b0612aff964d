// Bytes as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stowage {

// "4096", "512MiB", "4GiB", "4GB" as bytes. Throws Error naming the text.
std::int64_t parse_bytes(std::string_view text);

enum class Rounding : std::int8_t { kDown = -1, kNearest = 0, kUp = 1 };

// Such as "66.0 MiB": one digit after the point, in MiB up to 8 GiB. Bounds are rounded down and needs up, so that
// neither is said to be more or less than it is.
std::string in_words(std::int64_t bytes, Rounding rounding = Rounding::kNearest);

}  // namespace stowage
