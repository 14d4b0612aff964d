#include "runtime/memory/kept_content.h"

#include <algorithm>
#include <utility>

#include "runtime/memory/device.h"

namespace stowage::runtime {

KeptContent::KeptContent(std::vector<Range> ranges) : ranges_(std::move(ranges)) {
  std::int64_t all_bytes = 0;
  for (const Range& range : ranges_) all_bytes += range.end_bytes - range.start_bytes;
  if (all_bytes == 0) return;
  pages_.emplace(all_bytes);
  auto* at = static_cast<char*>(pages_->data());
  for (const auto& [storage, start_bytes, end_bytes] : ranges_) {
    const void* from = static_cast<const char*>(storage.data()) + start_bytes;
    device_at(storage.device()).to_host(at, from, end_bytes - start_bytes);
    at += end_bytes - start_bytes;
  }
}

void KeptContent::put_back() const {
  if (!pages_) return;
  const auto* at = static_cast<const char*>(pages_->data());
  for (const auto& [storage, start_bytes, end_bytes] : ranges_) {
    const auto until = std::min(end_bytes, static_cast<std::int64_t>(storage.nbytes()));
    if (until > start_bytes) {
      void* into = static_cast<char*>(storage.mutable_data()) + start_bytes;
      device_at(storage.device()).from_host(into, at, until - start_bytes);
    }
    at += end_bytes - start_bytes;
  }
}

}  // namespace stowage::runtime
