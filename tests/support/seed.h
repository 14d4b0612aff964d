// The first seed of a random test: STOWAGE_TEST_SEED when set, else 1. Tests name the seed in their messages.
// And how many cases: few in ./dev test, many in ./dev soak, which sets STOWAGE_SOAK_SECONDS.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace stowage::testing {

inline std::uint64_t first_seed() {
  const char* text = std::getenv("STOWAGE_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

inline int cases(int few, int many) { return std::getenv("STOWAGE_SOAK_SECONDS") != nullptr ? many : few; }

}  // namespace stowage::testing
