// Bytes in MiB, for messages: mebibytes(1572864, 1) is "1.5 MiB".
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace stowage {

inline std::string mebibytes(std::int64_t bytes, int digits) {
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), "%.*f MiB", digits, static_cast<double>(bytes) / (1 << 20));
  return text.data();
}

}  // namespace stowage
