#include "stowage/json.h"

#include <array>
#include <charconv>
#include <cmath>

namespace stowage::io {
namespace {

// The two-character escape of a control character, quote or backslash; 0 when there is none.
char short_escape(char c) {
  switch (c) {
    case '"': return '"';
    case '\\': return '\\';
    case '\b': return 'b';
    case '\f': return 'f';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    default: return 0;
  }
}

bool needs_escape(char c) { return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\'; }

template <class T>
void append_number(std::string& out, T value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  out.append(text.data(), end);
}

}  // namespace

void append_string(std::string& out, std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    if (!needs_escape(c)) {
      out += c;
    } else if (const char e = short_escape(c)) {
      out += '\\';
      out += e;
    } else {
      out += "\\u00";
      out += hex[static_cast<unsigned char>(c) >> 4];
      out += hex[static_cast<unsigned char>(c) & 15];
    }
  }
  out += '"';
}

void append_int(std::string& out, std::int64_t value) { append_number(out, value); }

void append_double(std::string& out, double value) {
  if (std::isfinite(value)) {
    append_number(out, value);
  } else {
    out += "null";
  }
}

}  // namespace stowage::io
