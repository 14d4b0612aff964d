// Sorts addresses that are spread over a known range: into buckets first, then within each.
//
//   range   0 ─────────────────────── most        as many buckets as keys; keys spread evenly are sorted by one pass of
//   buckets │ 3 │   │ 1 │ 2 │   │ 1 │ …           counting, one of moving, and next to nothing within a bucket
//
// O(n) when spread, O(n log n) at worst. Ties are in the order of `who`, so the result depends on the keys alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stowage {

struct AddressKey {
  std::int64_t address;  // 0 to the most
  std::int32_t who;
  bool operator<(const AddressKey& other) const {
    return address != other.address ? address < other.address : who < other.who;
  }
};

class AddressSort {
 public:
  void operator()(std::vector<AddressKey>& keys, std::int64_t most) {
    constexpr std::size_t kFew = 24;
    if (keys.size() <= kFew) {
      insertion(keys.data(), keys.data() + keys.size());
      return;
    }
    const std::size_t buckets = keys.size();
    const double scale = (static_cast<double>(buckets) - 0.5) / static_cast<double>(std::max<std::int64_t>(most, 1));
    starts_.assign(buckets + 1, 0);
    const auto bucket = [scale](const AddressKey& key) {
      return static_cast<std::size_t>(static_cast<double>(key.address) * scale);
    };
    for (const AddressKey& key : keys) ++starts_[bucket(key) + 1];
    for (std::size_t b = 1; b <= buckets; ++b) starts_[b] += starts_[b - 1];
    moved_.resize(keys.size());
    for (const AddressKey& key : keys) moved_[starts_[bucket(key)]++] = key;
    std::uint32_t from = 0;
    for (std::size_t b = 0; b < buckets; ++b) {
      const std::uint32_t to = starts_[b];
      if (to - from > kFew)
        std::sort(moved_.begin() + from, moved_.begin() + to);
      else if (to - from > 1)
        insertion(moved_.data() + from, moved_.data() + to);
      from = to;
    }
    keys.swap(moved_);
  }

 private:
  static void insertion(AddressKey* first, AddressKey* last) {
    for (AddressKey* i = first; i < last; ++i) {
      const AddressKey key = *i;
      AddressKey* at = i;
      for (; at > first && key < at[-1]; --at) *at = at[-1];
      *at = key;
    }
  }

  std::vector<std::uint32_t> starts_;
  std::vector<AddressKey> moved_;
};

}  // namespace stowage
