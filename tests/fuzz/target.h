// What every fuzz target shares: its entry, as libFuzzer calls it, and how it says that a promise is broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "stowage/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace stowage::fuzz {

// Ends the process; the driver keeps the input.
inline void require(bool holds, std::string_view promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %.*s\n", static_cast<int>(promise.size()), promise.data());
  std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Runs a reader. False when it refuses its input, which it may do by an Error of one line and by nothing else.
template <class Reader>
bool accepts(Reader reader) {
  try {
    reader();
    return true;
  } catch (const Error& error) {
    const std::string_view message = error.what();
    require(!message.empty() && message.find_first_of("\n\r") == std::string_view::npos, "a refusal is one line");
    return false;
  }
}

}  // namespace stowage::fuzz
