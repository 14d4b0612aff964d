#include "runtime/evict/host_heap.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace stowage::runtime::evict {

HostHeap::~HostHeap() { trim(); }

void* HostHeap::take(std::int64_t bytes) {
  if (limit_bytes_ > 0 && used_bytes_ + bytes > limit_bytes_) return nullptr;
  void* block = nullptr;
  if (const auto same = idle_.find(bytes); same != idle_.end() && !same->second.empty()) {
    block = same->second.back();
    same->second.pop_back();
    idle_bytes_ -= bytes;
  } else {
    if (limit_bytes_ > 0 && this->bytes() + bytes > limit_bytes_) trim();
    block = fresh(bytes);
    if (block == nullptr) return nullptr;
  }
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return block;
}

void HostHeap::give_back(void* block, std::int64_t bytes) {
  used_bytes_ -= bytes;
  try {
    idle_[bytes].push_back(block);
  } catch (const std::bad_alloc&) {
    free(block);
    return;
  }
  idle_bytes_ += bytes;
  if (idle_bytes_ > std::max(peak_bytes_, std::int64_t{64} << 20)) trim();  // sizes that no longer come
}

void HostHeap::trim() {
  for (auto& [bytes, blocks] : idle_) {
    for (void* block : blocks) free(block);
  }
  idle_.clear();
  idle_bytes_ = 0;
}

void* HostHeap::fresh(std::int64_t bytes) {
  const bool region = homes_ != nullptr && bytes >= kSmallestHomeBytes;
  if (!pins_ && !region) return std::malloc(static_cast<std::size_t>(bytes));
  try {
    c10::DataPtr block = region ? homes_->region(bytes) : device_.host_block(bytes);
    void* const at = block.get();
    if (at != nullptr) held_.emplace(at, std::move(block));
    return at;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void HostHeap::free(void* block) {
  if (held_.erase(block) == 0) std::free(block);
}

c10::DataPtr HostHeap::hand_over(void* block, std::int64_t bytes) {
  const auto held = held_.find(block);
  if (homes_ == nullptr || held == held_.end()) return {};
  used_bytes_ -= bytes;
  c10::DataPtr region = std::move(held->second);
  held_.erase(held);
  return region;
}

bool HostHeap::fill(void* block, const void* from, std::int64_t bytes) {
  try {
    homes_ != nullptr ? homes_->write(offset(block), from, bytes) : device_.to_host(block, from, bytes);
    return true;
  } catch (const std::exception&) {
    if (homes_ == nullptr) throw;
    return false;
  }
}

void HostHeap::copy_out_of(const void* block, void* into, std::int64_t bytes) {
  if (homes_ == nullptr) return device_.from_host(into, block, bytes);
  try {
    homes_->read(offset(block), into, bytes);
  } catch (const std::exception&) {
    device_.from_host(into, block, bytes);
  }
}

void HostHeap::for_each_part(std::int64_t offset, std::int64_t bytes, const Visit& visit) const {
  visit(reinterpret_cast<char*>(offset), bytes);
}

void HostHeap::write(std::int64_t offset, const void* from, std::int64_t bytes) {
  if (homes_ != nullptr) return homes_->write(offset, from, bytes);
  std::memcpy(reinterpret_cast<void*>(offset), from, static_cast<std::size_t>(bytes));
}

void HostHeap::read(std::int64_t offset, void* into, std::int64_t bytes) {
  if (homes_ != nullptr) return homes_->read(offset, into, bytes);
  std::memcpy(into, reinterpret_cast<const void*>(offset), static_cast<std::size_t>(bytes));
}

}  // namespace stowage::runtime::evict
