#include "layout/canonical_search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "layout/sections.h"

namespace stowage {
namespace {

using Ids = std::vector<std::int32_t>;

// Ids are places in the preference order.
class CanonicalSearch {
 public:
  CanonicalSearch(const LayoutInstance& instance, std::int64_t capacity, std::span<const std::int32_t> preference,
                  std::int64_t& work, const std::function<bool()>& should_stop)
      : capacity_(capacity), work_(work), should_stop_(should_stop) {
    const LayoutInstance reduced = by_sections(instance);
    for (const std::int32_t i : preference) rects_.push_back(reduced.rects[i]);
    const std::size_t n = rects_.size();
    support_.assign(n, 0);
    offset_.assign(n, -1);
    neighbours_.resize(n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        if (i != j && rects_[i].lower < rects_[j].upper && rects_[j].lower < rects_[i].upper)
          neighbours_[i].push_back(static_cast<std::int32_t>(j));
    lowest_.assign(reduced.times, 0);
    left_ = live_profile(rects_, reduced.times);
  }

  SearchOutcome run() {
    Ids all(rects_.size());
    std::iota(all.begin(), all.end(), 0);
    for (const std::int64_t bytes : left_)
      if (bytes > capacity_) return SearchOutcome::kNone;
    return groups(std::move(all), 0, -1);
  }

  [[nodiscard]] std::int64_t offset(std::size_t i) const { return offset_[i]; }

 private:
  struct Choice {
    std::int64_t at;
    std::int32_t rect;
    auto operator<=>(const Choice&) const = default;
  };
  struct Change {
    std::int32_t index;
    std::int64_t value;
  };

  // Searches each group of rects that shares no section with the others. `reached` and `last`: the offset and id of the latest placed.
  SearchOutcome groups(Ids rects, std::int64_t reached, std::int32_t last) {
    Ids by_time = rects;
    std::sort(by_time.begin(), by_time.end(), [&](std::int32_t a, std::int32_t b) {
      return rects_[a].lower != rects_[b].lower ? rects_[a].lower < rects_[b].lower : a < b;
    });
    std::size_t from = 0;
    std::int32_t end = by_time.empty() ? 0 : rects_[by_time[0]].upper;
    for (std::size_t i = 1; i <= by_time.size(); ++i) {
      if (i < by_time.size() && rects_[by_time[i]].lower < end) {
        end = std::max(end, rects_[by_time[i]].upper);
        continue;
      }
      Ids group(by_time.begin() + from, by_time.begin() + i);
      std::sort(group.begin(), group.end());
      const SearchOutcome outcome = place_next(group, reached, last);
      if (outcome != SearchOutcome::kFound) return outcome;
      if (i < by_time.size()) end = rects_[by_time[i]].upper;
      from = i;
    }
    return SearchOutcome::kFound;
  }

  SearchOutcome place_next(const Ids& group, std::int64_t reached, std::int32_t last) {
    work_ -= 4 * static_cast<std::int64_t>(group.size());
    if (work_ <= 0 || ((++visits_ & 255) == 0 && should_stop_ && should_stop_())) return SearchOutcome::kLimit;
    std::vector<Choice> choices;
    std::int64_t lowest_top = std::numeric_limits<std::int64_t>::max();
    for (const std::int32_t i : group) lowest_top = std::min(lowest_top, std::max(support_[i], reached) + rects_[i].bytes);
    for (const std::int32_t i : group)
      if (support_[i] < lowest_top && (support_[i] > reached || (support_[i] == reached && i > last)))
        choices.push_back({support_[i], i});
    std::sort(choices.begin(), choices.end());
    for (const Choice& choice : choices) {
      const SearchOutcome outcome = try_choice(group, choice);
      if (outcome != SearchOutcome::kNone) return outcome;
    }
    return SearchOutcome::kNone;
  }

  SearchOutcome try_choice(const Ids& group, const Choice& choice) {
    const Rect& rect = rects_[choice.rect];
    const std::int64_t top = choice.at + rect.bytes;
    const std::size_t mark = changes_.size();
    offset_[choice.rect] = choice.at;
    for (std::int32_t s = rect.lower; s < rect.upper; ++s) left_[s] -= rect.bytes;
    for (const std::int32_t j : neighbours_[choice.rect])
      if (offset_[j] < 0 && support_[j] < top) {
        changes_.push_back({j, support_[j]});
        support_[j] = top;
      }
    SearchOutcome outcome = SearchOutcome::kNone;
    if (fits(group, choice)) {
      Ids rest;
      rest.reserve(group.size() - 1);
      for (const std::int32_t i : group)
        if (i != choice.rect) rest.push_back(i);
      outcome = groups(std::move(rest), choice.at, choice.rect);
    }
    if (outcome != SearchOutcome::kFound) take_back(choice.rect, mark);
    return outcome;
  }

  // Necessary for the rest of the group: at each time, what is left goes above the lowest place that any of it can take.
  bool fits(const Ids& group, const Choice& choice) {
    std::int32_t lower = std::numeric_limits<std::int32_t>::max(), upper = 0;
    for (const std::int32_t i : group) {
      lower = std::min(lower, rects_[i].lower);
      upper = std::max(upper, rects_[i].upper);
    }
    std::fill(lowest_.begin() + lower, lowest_.begin() + upper, std::numeric_limits<std::int64_t>::max());
    for (const std::int32_t i : group) {
      if (i == choice.rect) continue;
      const std::int64_t at = std::max(support_[i], choice.at);
      work_ -= 2 + (rects_[i].upper - rects_[i].lower) / 2;
      if (at + rects_[i].bytes > capacity_) return false;
      for (std::int32_t s = rects_[i].lower; s < rects_[i].upper; ++s) lowest_[s] = std::min(lowest_[s], at);
    }
    for (std::int32_t s = lower; s < upper; ++s)
      if (left_[s] > 0 && lowest_[s] + left_[s] > capacity_) return false;
    return true;
  }

  void take_back(std::int32_t rect, std::size_t mark) {
    for (; changes_.size() > mark; changes_.pop_back()) support_[changes_.back().index] = changes_.back().value;
    for (std::int32_t s = rects_[rect].lower; s < rects_[rect].upper; ++s) left_[s] += rects_[rect].bytes;
    offset_[rect] = -1;
  }

  std::int64_t capacity_;
  std::int64_t& work_;
  std::int64_t visits_ = 0;
  const std::function<bool()>& should_stop_;
  std::vector<Rect> rects_;
  std::vector<Ids> neighbours_;
  std::vector<std::int64_t> support_, offset_;  // per rect
  std::vector<std::int64_t> left_, lowest_;     // per section: bytes still to place, and the lowest place any of it can take
  std::vector<Change> changes_;                 // to take back
};

}  // namespace

SearchResult canonical_search(const LayoutInstance& instance, std::int64_t capacity, std::span<const std::int32_t> preference,
                              std::int64_t& work, const std::function<bool()>& should_stop) {
  CanonicalSearch search(instance, capacity, preference, work, should_stop);
  SearchResult result{search.run(), {}};
  if (result.outcome != SearchOutcome::kFound) return result;
  result.offsets.at.resize(preference.size());
  for (std::size_t i = 0; i < preference.size(); ++i) {
    result.offsets.at[preference[i]] = search.offset(i);
    result.offsets.height = std::max(result.offsets.height, search.offset(i) + instance.rects[preference[i]].bytes);
  }
  return result;
}

}  // namespace stowage
