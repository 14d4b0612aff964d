#include "runtime/memory/pool.h"

#include <algorithm>
#include <utility>

namespace stowage::runtime {

void* Pool::take(std::size_t n) {
  const auto asked = static_cast<std::int64_t>(n);
  const void* const over = std::exchange(over_, nullptr);
  if (over != nullptr) {
    const auto it = blocks_.find(static_cast<const char*>(over) - base_);
    if (it != blocks_.end() && it->second.asked == asked) {
      ++it->second.holders;
      return base_ + it->first;
    }
  }
  const std::int64_t padded = std::max(kAlign, (asked + kAlign - 1) / kAlign * kAlign);
  std::int64_t offset = 0;
  for (const auto& [at, block] : blocks_) {
    if (at - offset >= padded) break;
    offset = at + block.padded;
  }
  wanted_ = std::max(wanted_, offset + padded);
  if (offset + padded > bytes_) return nullptr;
  blocks_.emplace(offset, Block{asked, padded, 1});
  return base_ + offset;
}

bool Pool::give_back(const void* address) {
  const char* const at = static_cast<const char*>(address);
  if (at < base_ || at >= base_ + bytes_) return false;
  const auto it = blocks_.find(at - base_);
  if (it == blocks_.end()) return false;
  if (--it->second.holders == 0) blocks_.erase(it);
  return true;
}

}  // namespace stowage::runtime
