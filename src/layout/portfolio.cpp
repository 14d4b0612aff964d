#include "layout/portfolio.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "layout/list_fit.h"
#include "layout/preferences.h"
#include "layout/sweep_fit.h"

namespace stowage {
namespace {

struct Served {
  Band band;
  Prefer prefer, rest;
};
constexpr std::array kServed = {Served{Band::kNone, Prefer::kSize, Prefer::kSize},
                                Served{Band::kNone, Prefer::kTotalSize, Prefer::kTotalSize},
                                Served{Band::kNone, Prefer::kArea, Prefer::kArea},
                                Served{Band::kNone, Prefer::kLifeAreaTotal, Prefer::kLifeAreaTotal},
                                Served{Band::kNone, Prefer::kFreeTime, Prefer::kFreeTime},
                                Served{Band::kFullest, Prefer::kFreeTime, Prefer::kSize},
                                Served{Band::kFullest, Prefer::kFreeTime, Prefer::kFreeTime},
                                Served{Band::kSteps, Prefer::kSizeFreeTime, Prefer::kArea},
                                Served{Band::kSteps, Prefer::kArea, Prefer::kArea}};

std::vector<std::int32_t> by_offset(const Offsets& offsets) {
  std::vector<std::int32_t> order(offsets.at.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return std::tie(offsets.at[a], a) < std::tie(offsets.at[b], b); });
  return order;
}

// Collects the best packings until one meets the target.
class Collection {
 public:
  explicit Collection(std::int64_t target) : target_(target) {}

  void add(Offsets offsets, std::vector<std::int32_t> order) {
    met_ |= offsets.height <= target_;
    const auto at = std::upper_bound(packings_.begin(), packings_.end(), offsets.height,
                                     [](std::int64_t height, const Packing& p) { return height < p.offsets.height; });
    packings_.insert(at, {std::move(offsets), std::move(order)});
    if (packings_.size() > kBestPackings) packings_.pop_back();
  }
  [[nodiscard]] bool met() const { return met_; }
  [[nodiscard]] std::int64_t ceiling() const { return ceiling_of(packings_); }

  std::vector<Packing> take() { return std::move(packings_); }

 private:
  std::int64_t target_;
  bool met_ = false;
  std::vector<Packing> packings_;
};

}  // namespace

std::int64_t ceiling_of(const std::vector<Packing>& packings) {
  return packings.size() < kBestPackings ? std::numeric_limits<std::int64_t>::max()
                                         : packings[kBestPackings - 1].offsets.height;
}

std::vector<Packing> portfolio(const LayoutInstance& instance, std::int64_t target, std::int64_t& work) {
  Collection collection(target);
  Offsets swept = sweep_fit(instance);
  std::vector<std::int32_t> order = by_offset(swept);
  collection.add(std::move(swept), std::move(order));
  for (const Gap gap : {Gap::kLowest, Gap::kTightest})
    for (const Served& served : kServed) {
      if (collection.met()) return collection.take();
      order = preference(instance, served.band, served.prefer, served.rest);
      Offsets fitted = list_fit(instance, order, gap, work, collection.ceiling());
      if (work <= 0) return collection.take();
      if (!fitted.at.empty()) collection.add(std::move(fitted), std::move(order));
    }
  return collection.take();
}

}  // namespace stowage
