// A name in quotes, fit for a one-line message: control characters escaped, long names cut between characters of UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace stowage {

inline std::string quote(std::string_view name) {
  std::size_t longest = 60;
  while (longest > 56 && longest < name.size() && (static_cast<unsigned char>(name[longest]) & 0xc0U) == 0x80)
    --longest;
  constexpr std::string_view hex = "0123456789abcdef";
  std::string out = "'";
  for (const char c : name.substr(0, longest)) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && code != 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += hex[code >> 4];
      out += hex[code & 15];
    }
  }
  if (name.size() > longest) out += "...";
  return out + "'";
}

}  // namespace stowage
