// Bytes of many storages, kept so that they can be put back: one after the other in one mapping of the host's (host_pages.h),
// which no allocator of PyTorch's counts.
//
//   storages    ▐██▌   ▐████▌  ▐█▌        ranges of them
//   mapping     ██████████████│
//
// O(bytes), and one copy each way.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/memory/host_pages.h"

namespace stowage::runtime {

class KeptContent {
 public:
  struct Range {
    c10::Storage storage;
    std::int64_t start_bytes, end_bytes;
  };

  // Throws std::bad_alloc where the host has no room.
  explicit KeptContent(std::vector<Range> ranges);

  // Of a storage that has become smaller, what it still has.
  void put_back() const;

 private:
  std::vector<Range> ranges_;
  std::optional<HostPages> pages_;
};

}  // namespace stowage::runtime
