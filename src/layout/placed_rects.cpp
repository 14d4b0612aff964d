#include "layout/placed_rects.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace stowage {
namespace {

// Finds a gap while neighbours come by in offset order.
class GapFinder {
 public:
  GapFinder(std::int64_t bytes, Gap gap) : bytes_(bytes), gap_(gap) {}

  // False when the answer is settled.
  bool pass(std::int64_t begin, std::int64_t end) {
    const std::int64_t room = begin - top_;
    if (room >= bytes_ && room < best_room_) {
      best_ = top_;
      best_room_ = room;
      if (gap_ == Gap::kLowest) return false;
    }
    top_ = std::max(top_, end);
    return true;
  }
  [[nodiscard]] std::int64_t offset() const { return best_ >= 0 ? best_ : top_; }

 private:
  std::int64_t bytes_;
  Gap gap_;
  std::int64_t top_ = 0, best_ = -1, best_room_ = std::numeric_limits<std::int64_t>::max();
};

constexpr std::size_t kBlock = 64;

// Whether a placed rect meets `rect` in time, without a branch: about a quarter do, in no pattern that could be
// foreseen.
std::uint8_t meet(std::int32_t lower, std::int32_t upper, const Rect& rect) {
  return static_cast<std::uint8_t>((lower < rect.upper) & (rect.lower < upper));
}

// Bit i: the i-th of kBlock rects meets `rect`. A byte each first, which compilers do for many at a time; then eight
// bytes become eight bits of the product's highest byte.
std::uint64_t full_block(const std::int32_t* lower, const std::int32_t* upper, const Rect& rect) {
  static_assert(std::endian::native == std::endian::little);
  std::array<std::uint8_t, kBlock> hits;
  for (std::size_t i = 0; i < kBlock; ++i) hits[i] = meet(lower[i], upper[i], rect);
  std::uint64_t meets = 0;
  for (std::size_t byte = 0; byte < kBlock / 8; ++byte) {
    std::uint64_t eight;
    std::memcpy(&eight, &hits[8 * byte], 8);
    meets |= (eight * 0x0102040810204080u >> 56) << (8 * byte);
  }
  return meets;
}

}  // namespace

PlacedList::PlacedList(std::size_t capacity) {
  begin_.reserve(capacity);
  end_.reserve(capacity);
  lower_.reserve(capacity);
  upper_.reserve(capacity);
}

std::uint64_t PlacedList::last_block(std::size_t from, const Rect& rect) const {
  std::uint64_t meets = 0;
  for (std::size_t i = from; i < begin_.size(); ++i)
    meets |= std::uint64_t{meet(lower_[i], upper_[i], rect)} << (i - from);
  return meets;
}

std::int64_t PlacedList::find(const Rect& rect, Gap gap, std::int64_t& work) const {
  GapFinder finder(rect.bytes, gap);
  for (std::size_t from = 0; from < begin_.size(); from += kBlock) {
    std::uint64_t meets =
        from + kBlock <= begin_.size() ? full_block(&lower_[from], &upper_[from], rect) : last_block(from, rect);
    for (; meets != 0; meets &= meets - 1) {
      const std::size_t i = from + static_cast<std::size_t>(std::countr_zero(meets));
      if (finder.pass(begin_[i], end_[i])) continue;
      work -= static_cast<std::int64_t>(i) + 1;
      return finder.offset();
    }
  }
  work -= static_cast<std::int64_t>(begin_.size()) + 1;
  return finder.offset();
}

void PlacedList::insert(const Rect& rect, std::int64_t offset, std::int64_t& /*work*/) {
  const auto at = std::upper_bound(begin_.begin(), begin_.end(), offset) - begin_.begin();
  begin_.insert(begin_.begin() + at, offset);
  end_.insert(end_.begin() + at, offset + rect.bytes);
  lower_.insert(lower_.begin() + at, rect.lower);
  upper_.insert(upper_.begin() + at, rect.upper);
}

}  // namespace stowage
