// One string out of texts and numbers, for messages: concat("op ", 7, ": ", name).
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace stowage {
namespace detail {

inline void append_part(std::string& out, std::string_view part) { out += part; }
template <std::integral T>
void append_part(std::string& out, T part) {
  out += std::to_string(part);
}

}  // namespace detail

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  (detail::append_part(out, parts), ...);
  return out;
}

}  // namespace stowage
