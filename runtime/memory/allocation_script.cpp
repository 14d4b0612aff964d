#include "runtime/memory/allocation_script.h"

#include <algorithm>

namespace stowage::runtime {

void AllocationScript::begin_op(const PlannedAllocation* first, std::size_t count) {
  next_ = first;
  end_ = first + count;
}

void AllocationScript::end_op(bool takes_all) {
  (takes_all ? misses_ : skipped_) += end_ - next_;
  next_ = end_ = nullptr;
}

bool AllocationScript::is_watched(const char* from, const char* to) const {
  return std::any_of(watched_.begin(), watched_.end(),
                     [&](const Range& range) { return from < range.to && range.from < to; });
}

void* AllocationScript::take(std::size_t n) {
  if (pool_ != nullptr) {
    void* const address = pool_->take(n);
    misses_ += address == nullptr ? 1 : 0;
    return address;
  }
  const auto bytes = static_cast<std::int64_t>(n);
  const auto* entry = std::find_if(next_, end_, [&](const PlannedAllocation& e) { return e.bytes == bytes; });
  if (entry == end_) {
    ++misses_;
    return nullptr;
  }
  skipped_ += entry - next_;
  next_ = entry + 1;
  if (entry->result != PlannedAllocation::kNoResult) {
    void* const address = leave_result(static_cast<std::size_t>(entry->result)).release_context();
    misses_ += address == nullptr ? 1 : 0;  // it has had it
    return address;
  }
  if (entry->offset == PlannedAllocation::kUnplanned) {
    ++misses_;
    return nullptr;
  }
  char* address = arena_.base() + entry->offset;
  if (is_watched(address, address + bytes)) {
    ++misses_;
    return nullptr;
  }
  watched_.push_back({address, address + bytes});
  const std::int64_t padded = (bytes + align_ - 1) / align_ * align_;
  if (entry->takes_over && live_.contains(address)) {
    heirs_[address] = padded;
  } else {
    add_live(address, padded);
  }
  return address;
}

void AllocationScript::vouch(const void* address, std::int64_t offset) {
  if (address != arena_.base() + offset) return;
  std::erase_if(watched_, [&](const Range& range) { return range.from == address; });
}

void AllocationScript::add_live(const void* address, std::int64_t padded_bytes) {
  live_.emplace(address, padded_bytes);
  live_bytes_ += padded_bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
}

bool AllocationScript::give_back(const void* address) {
  if (pool_ != nullptr && pool_->give_back(address)) return true;
  const auto it = live_.find(address);
  if (it == live_.end()) return false;
  live_bytes_ -= it->second;
  live_.erase(it);
  if (const auto heir = heirs_.find(address); heir != heirs_.end()) {
    add_live(address, heir->second);
    heirs_.erase(heir);
    return true;  // what is watched there is the heir
  }
  std::erase_if(watched_, [&](const Range& range) { return range.from == address; });
  return true;
}

bool AllocationScript::any_live(const char* from, const char* to) const {
  const auto inside = [&](const auto& block) {
    const char* at = static_cast<const char*>(block.first);
    return at < to && from < at + block.second;
  };
  return std::any_of(live_.begin(), live_.end(), inside) || std::any_of(heirs_.begin(), heirs_.end(), inside);
}

void AllocationScript::count_beside(std::int64_t peak_bytes, std::int64_t misses, std::int64_t skipped) {
  peak_bytes_ = std::max(peak_bytes_, live_bytes_ + peak_bytes);
  misses_ += misses;
  skipped_ += skipped;
}

void AllocationScript::reset_counters() {
  misses_ = skipped_ = 0;
  live_bytes_ = peak_bytes_ = 0;
  live_.clear();
  heirs_.clear();
  watched_.clear();
  next_ = end_ = nullptr;
  pool_ = nullptr;
}

}  // namespace stowage::runtime
