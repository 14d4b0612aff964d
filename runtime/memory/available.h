// How much memory can be touched before the kernel must take it from somebody: of the machine, and of each control
// group on the way from this process's to the root.
//
//   limit ████████████████████ used ████████░░░░░░ page cache ░░░░░░        available = limit - used + page cache that is clean
//
// Page cache counts as used by a group, but the kernel gives it up before it kills; what is dirty or being written it
// must write first, and that is left out.
#pragma once

#include <cstdint>
#include <string>

namespace stowage::runtime {

// `root`: where /proc and /sys are, "/" but for tests. The largest number where nothing is known. Both versions of
// control groups.
std::int64_t available_bytes(const std::string& root);

}  // namespace stowage::runtime
