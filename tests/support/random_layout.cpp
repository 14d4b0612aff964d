#include "support/random_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace stowage::testing {

bool overlap(const LayoutItem& a, const LayoutItem& b) {
  return a.lower < b.upper && b.lower < a.upper && a.bytes > 0 && b.bytes > 0;
}

std::int64_t least_height(const std::vector<LayoutItem>& items, std::int64_t align) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  do {
    std::vector<std::int64_t> at(items.size(), 0);
    std::int64_t height = 0;
    for (std::size_t k = 0; k < order.size(); ++k) {
      for (std::size_t q = 0; q < k; ++q)
        if (overlap(items[order[k]], items[order[q]]))
          at[order[k]] = std::max(at[order[k]], (at[order[q]] + items[order[q]].bytes + align - 1) / align * align);
      height = std::max(height, at[order[k]] + items[order[k]].bytes);
    }
    least = std::min(least, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

namespace {

bool place_all(const std::vector<LayoutItem>& items, std::int64_t capacity, std::vector<std::int64_t>& at) {
  const std::size_t k = at.size();
  if (k == items.size()) return true;
  for (std::int64_t offset = 0; offset + items[k].bytes <= capacity; ++offset) {
    bool clear = true;
    for (std::size_t q = 0; q < k && clear; ++q)
      clear = !overlap(items[k], items[q]) || offset + items[k].bytes <= at[q] || at[q] + items[q].bytes <= offset;
    if (!clear) continue;
    at.push_back(offset);
    if (place_all(items, capacity, at)) return true;
    at.pop_back();
  }
  return false;
}

}  // namespace

bool fits_somehow(const std::vector<LayoutItem>& items, std::int64_t capacity) {
  std::vector<LayoutItem> by_time = items;
  std::sort(by_time.begin(), by_time.end(), [](const LayoutItem& a, const LayoutItem& b) { return a.lower < b.lower; });
  std::vector<std::int64_t> at;
  return place_all(by_time, capacity, at);
}

std::vector<LayoutItem> random_items(std::mt19937_64& random, int count, int times, int most) {
  std::vector<LayoutItem> items;
  for (int i = 0; i < count; ++i) {
    const std::int64_t lower = draw(random, 0, times - 1);
    items.push_back({lower, draw(random, lower + 1, times), draw(random, 1, most)});
  }
  return items;
}

std::vector<LayoutItem> full_items(std::mt19937_64& random, std::int64_t height, std::int64_t times) {
  std::vector<LayoutItem> live, ended;
  for (std::int64_t time = 0; time < times; ++time) {
    std::int64_t room = time == 0 ? height : 0;
    std::vector<LayoutItem> kept;
    for (LayoutItem& item : live) {
      if (chance(random, 60)) {
        kept.push_back(item);
        continue;
      }
      item.upper = time;
      room += item.bytes;
      ended.push_back(item);
    }
    for (live = kept; room > 0; room -= live.back().bytes)
      live.push_back({time, times, draw(random, 1, std::min<std::int64_t>(room, 4))});
  }
  ended.insert(ended.end(), live.begin(), live.end());
  return ended;
}

void cut_up(std::mt19937_64& random, LayoutItem piece, int cuts, std::vector<LayoutItem>& into) {
  const bool across = chance(random, 50);
  if (cuts == 0 || (across ? piece.bytes < 2 : piece.upper - piece.lower < 2)) {
    into.push_back(piece);
    return;
  }
  LayoutItem rest = piece;
  if (across) {
    piece.bytes = draw(random, 1, rest.bytes - 1);
    rest.bytes -= piece.bytes;
  } else {
    piece.upper = rest.lower = draw(random, piece.lower + 1, piece.upper - 1);
  }
  cut_up(random, piece, cuts - 1, into);
  cut_up(random, rest, cuts - 1, into);
}

void expect_valid(const LayoutInstance& instance, const Offsets& offsets) {
  const auto& rects = instance.rects;
  ASSERT_EQ(offsets.at.size(), rects.size());
  std::int64_t height = 0;
  for (std::size_t i = 0; i < rects.size(); ++i) {
    EXPECT_GE(offsets.at[i], 0);
    height = std::max(height, offsets.at[i] + rects[i].bytes);
    for (std::size_t j = 0; j < i; ++j)
      if (rects[i].lower < rects[j].upper && rects[j].lower < rects[i].upper) {
        EXPECT_TRUE(offsets.at[i] + rects[i].bytes <= offsets.at[j] || offsets.at[j] + rects[j].bytes <= offsets.at[i])
            << "rects " << i << " and " << j;
      }
  }
  EXPECT_EQ(offsets.height, height);
}

}  // namespace stowage::testing
