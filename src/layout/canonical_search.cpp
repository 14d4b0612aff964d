#include "layout/canonical_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "layout/sections.h"

namespace stowage {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr int kLifts = 3;

// Ids are places in the preference order. Sizes are counted in `unit`, the greatest common divisor of all, in the type
// Bytes.
template <class Bytes>
class CanonicalSearch {
 public:
  CanonicalSearch(const LayoutInstance& instance, std::int64_t capacity, std::span<const std::int32_t> preference,
                  std::int64_t& work, const std::function<bool()>& should_stop)
      : work_(work), should_stop_(should_stop) {
    const LayoutInstance reduced = by_sections(instance);
    for (const std::int32_t i : preference) unit_ = std::gcd(unit_, reduced.rects[i].bytes);
    for (const std::int32_t i : preference) {
      const Rect& r = reduced.rects[i];
      rects_.push_back({r.lower, r.upper, static_cast<Bytes>(r.bytes / unit_)});
    }
    capacity_ = static_cast<Bytes>(capacity / unit_);
    const std::size_t n = rects_.size();
    support_.assign(n, 0);
    lowest_.assign(n, 0);
    offset_.assign(n, -1);
    section_.assign(reduced.times, 0);
    for (const std::int64_t bytes : live_profile(reduced.rects, reduced.times))
      left_.push_back(static_cast<Bytes>(bytes / unit_));
    find_neighbours();
    find_alike();
  }

  SearchOutcome run() {
    for (const Bytes bytes : left_)
      if (bytes > capacity_) return SearchOutcome::kNone;
    group_.resize(rects_.size());
    std::iota(group_.begin(), group_.end(), 0);
    std::sort(group_.begin(), group_.end(), [&](std::int32_t a, std::int32_t b) {
      return rects_[a].lower != rects_[b].lower ? rects_[a].lower < rects_[b].lower : a < b;
    });
    return search_rest({0, group_.size()}, 0, -1);
  }

  [[nodiscard]] std::int64_t offset(std::size_t i) const { return std::int64_t{offset_[i]} * unit_; }

 private:
  struct Piece {
    std::int32_t lower, upper;  // sections
    Bytes bytes;
  };
  struct Choice {
    Bytes at;
    std::int32_t rect;
    auto operator<=>(const Choice&) const = default;
  };
  struct Change {
    std::int32_t index;
    Bytes value;
  };
  struct Stretch {
    std::size_t from, to;  // in group_, by time
  };
  struct Top {
    Bytes at;
    std::int32_t rect;
  };
  struct Placed {
    std::int32_t rect;
    std::size_t changes;  // there were before it
    Top below;            // of its life
  };

  void find_neighbours() {
    neighbours_.resize(rects_.size());
    Ids by_lower(rects_.size());
    std::iota(by_lower.begin(), by_lower.end(), 0);
    std::sort(by_lower.begin(), by_lower.end(),
              [&](std::int32_t a, std::int32_t b) { return rects_[a].lower < rects_[b].lower; });
    for (std::size_t k = 0; k < by_lower.size(); ++k)
      for (std::size_t q = k + 1; q < by_lower.size() && rects_[by_lower[q]].lower < rects_[by_lower[k]].upper; ++q) {
        neighbours_[by_lower[k]].push_back(by_lower[q]);
        neighbours_[by_lower[q]].push_back(by_lower[k]);
      }
  }

  // Rects of one life, and among them those of one size.
  void find_alike() {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> lives;
    std::map<std::array<std::int64_t, 3>, std::int32_t> latest;
    for (std::size_t i = 0; i < rects_.size(); ++i) {
      const Piece& r = rects_[i];
      life_.push_back(lives.try_emplace({r.lower, r.upper}, static_cast<std::int32_t>(lives.size())).first->second);
      const auto [twin, is_first] = latest.try_emplace({r.lower, r.upper, r.bytes}, static_cast<std::int32_t>(i));
      twin_.push_back(is_first ? -1 : std::exchange(twin->second, static_cast<std::int32_t>(i)));
    }
    top_.assign(lives.size(), {-1, -1});
  }

  // Searches the group less the rect `last`, just placed at `reached`, in pieces that share no section; the small ones
  // first.
  SearchOutcome search_rest(Stretch group, Bytes reached, std::int32_t last) {
    const std::size_t mark = group_.size();
    std::vector<Stretch> pieces;
    std::int32_t end = -1;
    for (std::size_t k = group.from; k < group.to; ++k) {
      const std::int32_t i = group_[k];
      if (i == last) continue;
      if (rects_[i].lower >= end) pieces.push_back({group_.size(), group_.size()});
      end = std::max(end, rects_[i].upper);
      group_.push_back(i);
      pieces.back().to = group_.size();
    }
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Stretch& a, const Stretch& b) { return a.to - a.from < b.to - b.from; });
    SearchOutcome outcome = SearchOutcome::kFound;
    for (const Stretch& piece : pieces) {
      outcome = place_next(piece, reached, last);
      if (outcome != SearchOutcome::kFound) break;
    }
    group_.resize(mark);
    return outcome;
  }

  SearchOutcome place_next(Stretch group, Bytes reached, std::int32_t last) {
    work_ -= 4 * static_cast<std::int64_t>(group.to - group.from) + 40;
    if (work_ <= 0 || ((++visits_ & 255) == 0 && should_stop_ && should_stop_())) return SearchOutcome::kLimit;
    for (const Choice& choice : choices(group, reached, last)) {
      const SearchOutcome outcome = try_choice(group, choice);
      if (outcome != SearchOutcome::kNone) return outcome;
      if (is_topmost(choice.rect)) return SearchOutcome::kNone;
    }
    return SearchOutcome::kNone;
  }

  std::vector<Choice> choices(Stretch group, Bytes reached, std::int32_t last) const {
    std::vector<Choice> result;
    Bytes lowest_top = std::numeric_limits<Bytes>::max();
    for (std::size_t k = group.from; k < group.to; ++k)
      lowest_top = std::min(lowest_top, std::max(support_[group_[k]], reached) + rects_[group_[k]].bytes);
    for (std::size_t k = group.from; k < group.to; ++k) {
      const std::int32_t i = group_[k];
      if (support_[i] >= lowest_top || support_[i] < reached || (support_[i] == reached && i < last)) continue;
      if (twin_[i] >= 0 && offset_[twin_[i]] < 0) continue;
      const Top& below = top_[life_[i]];
      if (below.at == support_[i] && below.rect > i) continue;
      result.push_back({support_[i], i});
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  // Nothing unplaced can ever lie on or under the rect.
  bool is_topmost(std::int32_t rect) {
    work_ -= static_cast<std::int64_t>(neighbours_[rect].size()) / 4;
    return std::none_of(neighbours_[rect].begin(), neighbours_[rect].end(),
                        [&](std::int32_t j) { return offset_[j] < 0; });
  }

  SearchOutcome try_choice(Stretch group, const Choice& choice) {
    const std::size_t mark = placed_.size();
    place(choice);
    SearchOutcome outcome = SearchOutcome::kNone;
    if (fits(group, choice)) outcome = search_rest(group, choice.at, choice.rect);
    // A piece that was found before another failed is taken back with the choice.
    while (outcome != SearchOutcome::kFound && placed_.size() > mark) take_back();
    return outcome;
  }

  void place(const Choice& choice) {
    const Piece& rect = rects_[choice.rect];
    const Bytes top = choice.at + rect.bytes;
    placed_.push_back({choice.rect, changes_.size(), std::exchange(top_[life_[choice.rect]], {top, choice.rect})});
    offset_[choice.rect] = choice.at;
    for (std::int32_t s = rect.lower; s < rect.upper; ++s) left_[s] -= rect.bytes;
    for (const std::int32_t j : neighbours_[choice.rect])
      if (offset_[j] < 0 && support_[j] < top) {
        changes_.push_back({j, support_[j]});
        support_[j] = top;
      }
    work_ -= static_cast<std::int64_t>(neighbours_[choice.rect].size());
  }

  void take_back() {
    const Placed latest = placed_.back();
    placed_.pop_back();
    const Piece& rect = rects_[latest.rect];
    for (; changes_.size() > latest.changes; changes_.pop_back())
      support_[changes_.back().index] = changes_.back().value;
    for (std::int32_t s = rect.lower; s < rect.upper; ++s) left_[s] += rect.bytes;
    offset_[latest.rect] = -1;
    top_[life_[latest.rect]] = latest.below;
  }

  // Necessary for the rest of the group, in order of cost: the lowest place of each rect; at each section all that is
  // left above the lowest of these places; and above each of these places what is left that cannot lie below it.
  bool fits(Stretch group, const Choice& choice) {
    if (!find_lowest(group, choice)) return false;
    const std::int32_t first = rects_[group_[group.from]].lower;
    std::int32_t end = first;
    for (std::size_t k = group.from; k < group.to; ++k) end = std::max(end, rects_[group_[k]].upper);
    std::fill(section_.begin() + first, section_.begin() + end, std::numeric_limits<Bytes>::max());
    for (std::size_t k = group.from; k < group.to; ++k) {
      const std::int32_t i = group_[k];
      if (i == choice.rect) continue;
      for (std::int32_t s = rects_[i].lower; s < rects_[i].upper; ++s) section_[s] = std::min(section_[s], lowest_[i]);
      work_ -= 2 + (rects_[i].upper - rects_[i].lower) / 2;
    }
    for (std::int32_t s = first; s < end; ++s)
      if (left_[s] > 0 && section_[s] + left_[s] > capacity_) return false;
    return stacks_fit(group, choice.rect, first, end);
  }

  // A rect that its support would put before `choice` in the order can only come later: once something lies under it.
  // So it is at least as high as the lowest top of what may.
  bool find_lowest(Stretch group, const Choice& choice) {
    late_.clear();
    for (std::size_t k = group.from; k < group.to; ++k) {
      const std::int32_t i = group_[k];
      lowest_[i] = std::max(support_[i], choice.at);
      if (i != choice.rect && (support_[i] < choice.at || (support_[i] == choice.at && i < choice.rect)))
        late_.push_back(i);
    }
    bool lifted = true;
    for (int round = 0; round < kLifts && lifted; ++round) {
      lifted = false;
      for (const std::int32_t i : late_) {
        Bytes least = capacity_ + 1;
        for (const std::int32_t j : neighbours_[i])
          if (offset_[j] < 0) least = std::min(least, lowest_[j] + rects_[j].bytes);
        work_ -= static_cast<std::int64_t>(neighbours_[i].size());
        lifted |= least > lowest_[i];
        lowest_[i] = std::max(lowest_[i], least);
        if (lowest_[i] + rects_[i].bytes > capacity_) return false;
      }
    }
    for (std::size_t k = group.from; k < group.to; ++k)
      if (group_[k] != choice.rect && lowest_[group_[k]] + rects_[group_[k]].bytes > capacity_) return false;
    return true;
  }

  bool stacks_fit(Stretch group, std::int32_t without, std::int32_t first, std::int32_t end) {
    falling_.clear();
    for (std::size_t k = group.from; k < group.to; ++k)
      if (group_[k] != without) falling_.push_back({-lowest_[group_[k]], group_[k]});
    std::sort(falling_.begin(), falling_.end());
    std::fill(section_.begin() + first, section_.begin() + end, 0);
    for (const Choice& c : falling_) {
      const Piece& r = rects_[c.rect];
      Bytes most = 0;
      for (std::int32_t s = r.lower; s < r.upper; ++s) most = std::max(most, section_[s] += r.bytes);
      work_ -= 10 + (r.upper - r.lower) / 2;
      if (most - c.at > capacity_) return false;
    }
    return true;
  }

  Bytes capacity_ = 0;
  std::int64_t unit_ = 0;
  std::int64_t& work_;
  std::int64_t visits_ = 0;
  const std::function<bool()>& should_stop_;
  std::vector<Piece> rects_;
  std::vector<Ids> neighbours_;
  // Per rect: number of its life; the rect before it that equals it, or -1
  Ids life_, twin_;
  std::vector<Top> top_;  // per life: top of the latest placed
  // Per rect; lowest: no place below it can be reached; offset -1: not placed
  std::vector<Bytes> support_, lowest_, offset_;
  std::vector<Bytes> left_, section_;  // per section: bytes still to place; scratch
  Ids group_, late_;                   // stack of groups, each by first section; scratch
  std::vector<Choice> falling_;        // scratch
  std::vector<Placed> placed_;         // in order, to take back
  std::vector<Change> changes_;
};

template <class Bytes>
SearchResult search(const LayoutInstance& instance, std::int64_t capacity, std::span<const std::int32_t> preference,
                    std::int64_t& work, const std::function<bool()>& should_stop) {
  CanonicalSearch<Bytes> search(instance, capacity, preference, work, should_stop);
  SearchResult result{search.run(), {}};
  if (result.outcome != SearchOutcome::kFound) return result;
  result.offsets.at.resize(preference.size());
  for (std::size_t i = 0; i < preference.size(); ++i) {
    result.offsets.at[preference[i]] = search.offset(i);
    result.offsets.height = std::max(result.offsets.height, search.offset(i) + instance.rects[preference[i]].bytes);
  }
  return result;
}

}  // namespace

SearchResult canonical_search(const LayoutInstance& instance, std::int64_t capacity,
                              std::span<const std::int32_t> preference, std::int64_t& work,
                              const std::function<bool()>& should_stop) {
  // Sums of two stay below 2^31; narrow numbers go through the vector units twice as fast
  constexpr std::int64_t kNarrow = 1 << 30;
  if (capacity < kNarrow && instance.bound < kNarrow)
    return search<std::int32_t>(instance, capacity, preference, work, should_stop);
  return search<std::int64_t>(instance, capacity, preference, work, should_stop);
}

}  // namespace stowage
