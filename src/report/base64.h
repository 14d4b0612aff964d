// Arrays of numbers as text: base64 (RFC 4648) of their little-endian bytes, so that a page reads them without parsing.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace stowage::report {

static_assert(std::endian::native == std::endian::little, "arrays are written as they lie in memory");

inline std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto at = [&](std::size_t k) { return i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U; };
    const std::uint32_t three = at(0) << 16 | at(1) << 8 | at(2);
    for (int k = 0; k < 4; ++k) out += i + static_cast<std::size_t>(k) <= bytes.size() ? digits[three >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

template <class T>
std::string base64(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return base64(std::string_view(bytes));
}

}  // namespace stowage::report
