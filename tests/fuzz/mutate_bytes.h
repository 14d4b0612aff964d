// Random changes of an input, as careless writers, broken disks and strangers make them.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace stowage::fuzz {

// One of `pool` (not empty) with some changes, at most 64 kB; now and then bytes at random.
std::string mutated(const std::vector<std::string>& pool, std::mt19937_64& random);

}  // namespace stowage::fuzz
