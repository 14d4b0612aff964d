// Bytes of storages, wherever those lie.
#pragma once

#include <c10/core/Storage.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/memory/device.h"
#include "runtime/memory/host_pages.h"

namespace stowage::runtime {

// How often a copy is made.
enum class Kept : std::uint8_t {
  kInEachStep,  // the host does not wait
  kOnce,        // what is large waits, and its memory costs less
};

// A copy that may have to be put back. Made, and put back, in the order of the kernels.
class KeptBytes {
 public:
  KeptBytes(const c10::Storage& from, Kept often) : bytes_(static_cast<std::int64_t>(from.nbytes())) {
    if (bytes_ == 0) return;
    Device& device = device_at(from.device());
    if (often == Kept::kOnce && bytes_ >= kLarge && !from.device().is_cpu()) {
      pages_.emplace(bytes_);
      device.to_host(pages_->data(), from.data(), bytes_);
    } else {
      block_ = device.host_block(bytes_);
      device.keep(block_.get(), from.data(), bytes_);
    }
  }
  void put_back(const c10::Storage& into) const {
    const std::int64_t bytes = std::min(bytes_, static_cast<std::int64_t>(into.nbytes()));
    if (bytes == 0) return;
    Device& device = device_at(into.device());
    if (pages_) {
      device.from_host(into.mutable_data(), pages_->data(), bytes);
    } else {
      device.put_back(into.mutable_data(), block_.get(), bytes);
    }
  }

 private:
  static constexpr std::int64_t kLarge = std::int64_t{1} << 20;

  std::int64_t bytes_;
  c10::DataPtr block_;
  std::optional<HostPages> pages_;
};

// All bytes of `from`, as far as both have them. Both lie in one place. In the order of the kernels.
inline void copy_bytes(const c10::Storage& from, const c10::Storage& to) {
  const auto bytes = static_cast<std::int64_t>(std::min(from.nbytes(), to.nbytes()));
  if (bytes > 0 && from.data() != to.data()) device_at(to.device()).copy(to.mutable_data(), from.data(), bytes);
}

// Those bytes of `from` that begin at `start_bytes`, as many as `to` has.
inline void copy_part(const c10::Storage& from, std::int64_t start_bytes, const c10::Storage& to) {
  if (to.nbytes() == 0) return;
  const void* part = static_cast<const char*>(from.data()) + start_bytes;
  device_at(to.device()).copy(to.mutable_data(), part, static_cast<std::int64_t>(to.nbytes()));
}

// Does `from` have the bytes of `part` there? Both lie in one place.
inline bool same_part(const c10::Storage& from, std::int64_t start_bytes, const c10::Storage& part) {
  if (part.nbytes() == 0) return true;
  const void* data = static_cast<const char*>(from.data()) + start_bytes;
  return device_at(part.device()).same(data, part.data(), static_cast<std::int64_t>(part.nbytes()));
}

// As they are when all kernels asked for so far are done. Waits for those.
inline std::string bytes_of(const c10::Storage& storage) {
  std::string content(storage.nbytes(), '\0');
  if (!content.empty())
    device_at(storage.device()).to_host(content.data(), storage.data(), static_cast<std::int64_t>(content.size()));
  return content;
}

inline bool same_bytes(const c10::Storage& a, const c10::Storage& b) {
  if (a.nbytes() != b.nbytes() || a.device() != b.device()) return false;
  if (a.nbytes() == 0 || a.data() == b.data()) return true;
  return device_at(a.device()).same(a.data(), b.data(), static_cast<std::int64_t>(a.nbytes()));
}

}  // namespace stowage::runtime
