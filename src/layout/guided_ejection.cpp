#include "layout/guided_ejection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "layout/address_sort.h"
#include "layout/live_rects.h"

namespace stowage {
namespace {

// The rects that have no place.
class Pool {
 public:
  enum class Next : std::uint8_t { kLatest, kHeaviest };
  explicit Pool(Next next) : next_(next) {}

  void add(std::int32_t rect, float weight) {
    rects_.emplace_back(weight, rect);
    if (next_ == Next::kHeaviest) std::push_heap(rects_.begin(), rects_.end());
  }
  std::int32_t take() {
    if (next_ == Next::kHeaviest) std::pop_heap(rects_.begin(), rects_.end());
    const std::int32_t rect = rects_.back().second;
    rects_.pop_back();
    return rect;
  }
  [[nodiscard]] std::size_t size() const { return rects_.size(); }
  [[nodiscard]] bool empty() const { return rects_.empty(); }

 private:
  Next next_;
  std::vector<std::pair<float, std::int32_t>> rects_;
};

class Ejection {
 public:
  Ejection(const LayoutInstance& instance, const Offsets& start, Pool::Next next)
      : instance_(instance), pool_(next), placed_(instance.times, instance.rects.size()), at_(start.at) {
    failures_.assign(instance.rects.size(), 0);
    for (std::size_t i = 0; i < instance.rects.size(); ++i) {
      const Rect& r = instance.rects[i];
      weight_.push_back(static_cast<float>(std::sqrt(static_cast<double>(r.bytes) * (r.upper - r.lower))));
      placed_.insert(static_cast<std::int32_t>(i), r, at_[i], weight_[i]);
    }
  }

  // From the layout `start`; false when the ceiling was given up. `work` without a smaller pool is borne up to `patience`.
  bool lower_to(std::int64_t ceiling, const Offsets& start, std::int64_t patience, std::int64_t& work,
                const std::function<bool()>& should_stop) {
    go_to(start);
    throw_out_above(ceiling);
    std::size_t least = pool_.size();
    std::int64_t until = work - patience;
    for (std::uint64_t steps = 1; !pool_.empty() && work > std::max<std::int64_t>(until, 0); ++steps) {
      if ((steps & 63) == 0 && should_stop && should_stop()) return false;
      step(ceiling, work);
      if (pool_.size() >= least) continue;
      least = pool_.size();
      until = work - patience;
    }
    return pool_.empty();
  }

  [[nodiscard]] Offsets layout() const {
    Offsets result{at_, 0};
    for (std::size_t i = 0; i < at_.size(); ++i)
      result.height = std::max(result.height, at_[i] + instance_.rects[i].bytes);
    return result;
  }

 private:
  using Placed = LiveRects::Placed;
  struct Found {
    std::int64_t at;
    double price;
  };
  static constexpr std::int64_t kOut = -1;
  static constexpr double kLess = 1 - 1e-9;  // of prices that differ by rounding alone, the lower address

  void go_to(const Offsets& start) {
    while (!pool_.empty()) pool_.take();
    for (std::size_t i = 0; i < at_.size(); ++i) {
      const auto rect = static_cast<std::int32_t>(i);
      if (at_[i] == start.at[i]) continue;
      if (at_[i] != kOut) placed_.remove(rect);
      put(rect, start.at[i]);
    }
  }

  // The largest last, to be taken first.
  void throw_out_above(std::int64_t ceiling) {
    std::vector<std::int32_t> above;
    for (std::size_t i = 0; i < at_.size(); ++i)
      if (at_[i] + instance_.rects[i].bytes > ceiling) above.push_back(static_cast<std::int32_t>(i));
    std::stable_sort(above.begin(), above.end(),
                     [&](std::int32_t a, std::int32_t b) { return weight_[a] < weight_[b]; });
    for (const std::int32_t i : above) throw_out(i);
  }

  void throw_out(std::int32_t i) {
    placed_.remove(i);
    at_[i] = kOut;
    pool_.add(i, weight_[i]);
  }

  void put(std::int32_t i, std::int64_t offset) {
    at_[i] = offset;
    placed_.insert(i, instance_.rects[i], offset, static_cast<float>(1 + failures_[i]) * weight_[i]);
  }

  void step(std::int64_t ceiling, std::int64_t& work) {
    const std::int32_t i = pool_.take();
    const Rect& rect = instance_.rects[i];
    std::int64_t looked = 50;
    placed_.gather(rect, met_, looked);
    const auto [at, price] = cheapest(rect, ceiling);
    work -= looked + 20 * static_cast<std::int64_t>(met_.size());
    if (price > 0) {
      ++failures_[i];
      for (const Placed& p : met_)
        if (p.begin < at + rect.bytes && at < p.end) throw_out(p.rect);
    }
    put(i, at);
  }

  // The address below the ceiling where what must go has the least price: 0, or the end of a neighbour, or as high as
  // the ceiling allows. Price 0: nothing must go.
  Found cheapest(const Rect& rect, std::int64_t ceiling) {
    begins_.clear();
    ends_.clear();
    for (std::size_t k = 0; k < met_.size(); ++k) {
      begins_.push_back({met_[k].begin, static_cast<std::int32_t>(k)});
      ends_.push_back({met_[k].end, static_cast<std::int32_t>(k)});
    }
    sort_(begins_, ceiling);
    sort_(ends_, ceiling);
    const std::int64_t most = ceiling - rect.bytes;
    Found best{0, std::numeric_limits<double>::max()};
    double price = 0;
    std::size_t begun = 0;
    for (std::size_t ended = 0;; ++ended) {
      const std::int64_t at = ended == 0 ? 0 : ends_[ended - 1].address;
      if (at > most) break;
      if (ended > 0) price -= met_[ends_[ended - 1].who].price;
      for (; begun < begins_.size() && begins_[begun].address < at + rect.bytes; ++begun)
        price += met_[begins_[begun].who].price;
      if (begun == ended) return {at, 0};
      if (price < best.price * kLess) best = {at, price};
      if (ended == ends_.size()) break;
    }
    double top = 0;
    for (std::size_t k = ends_.size(); k > 0 && ends_[k - 1].address > most; --k) top += met_[ends_[k - 1].who].price;
    return top < best.price * kLess ? Found{most, top} : best;
  }

  const LayoutInstance& instance_;
  Pool pool_;
  LiveRects placed_;
  std::vector<std::int64_t> at_;
  std::vector<std::int32_t> failures_;  // to find a gap
  std::vector<float> weight_;
  AddressSort sort_;
  std::vector<Placed> met_;                // scratch
  std::vector<AddressKey> begins_, ends_;  // scratch
};

// Which ceiling is next: the target itself, then a share of the way to it that shrinks with success and grows with failure.
class Ceilings {
 public:
  [[nodiscard]] std::int64_t next(std::int64_t height, std::int64_t target) const {
    return target + static_cast<std::int64_t>(static_cast<double>(height - target) * share_);
  }
  void found() { share_ = std::max(0.3, 0.8 * share_); }
  // True when ceilings close to the height have failed as well: what is missing is patience.
  bool failed() {
    share_ = share_ == 0 ? 0.5 : (1 + share_) / 2;
    if (share_ < 0.93) return false;
    share_ = 0.75;
    return true;
  }

 private:
  double share_ = 0;
};

}  // namespace

Offsets guided_ejection(const LayoutInstance& instance, Offsets offsets, std::int64_t target, std::int64_t& work,
                        int threads, const std::function<bool()>& should_stop) {
  constexpr std::int64_t kFirstPatience = 90;  // a share of all work, of each ceiling and search
  std::array<std::unique_ptr<Ejection>, 2> searches;
  parallel_for(searches.size(), threads, [&](std::size_t k) {
    searches[k] = std::make_unique<Ejection>(instance, offsets, k == 0 ? Pool::Next::kLatest : Pool::Next::kHeaviest);
  });
  Ceilings ceilings;
  std::int64_t patience = work / kFirstPatience;
  while (offsets.height > target && work > 0 && !(should_stop && should_stop())) {
    const std::int64_t ceiling = ceilings.next(offsets.height, target);
    std::array<std::int64_t, searches.size()> left;
    std::array<bool, searches.size()> found;
    left.fill(work / static_cast<std::int64_t>(searches.size()));
    const std::int64_t given = left[0];
    parallel_for(searches.size(), threads, [&](std::size_t k) {
      found[k] = searches[k]->lower_to(ceiling, offsets, patience, left[k], should_stop);
    });
    bool any = false;
    for (std::size_t k = 0; k < searches.size(); ++k) {
      work -= std::max<std::int64_t>(given - left[k], 1);
      if (!found[k]) continue;
      any = true;
      Offsets lower = searches[k]->layout();
      if (lower.height < offsets.height) offsets = std::move(lower);
    }
    if (any)
      ceilings.found();
    else if (ceilings.failed())
      patience *= 2;
    if (given <= 0) break;
  }
  return offsets;
}

}  // namespace stowage
