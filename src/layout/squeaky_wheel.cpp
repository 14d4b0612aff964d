#include "layout/squeaky_wheel.h"

#include <algorithm>
#include <random>

#include "layout/list_fit.h"

namespace stowage {
namespace {

constexpr int kPatience = 60;  // rounds without a better layout before the search returns to the best order

class Wheel {
 public:
  Wheel(const LayoutInstance& instance, std::vector<std::int32_t> order, std::int64_t target, std::uint64_t seed)
      : instance_(instance), target_(target), order_(std::move(order)), best_order_(order_), random_(seed) {}

  Offsets run(std::int64_t& work, const std::function<bool()>& should_stop) {
    while (!(should_stop && should_stop())) {
      Offsets now = list_fit(instance_, order_, Gap::kLowest, work);
      if (now.at.empty()) break;
      ++idle_;
      if (best_.at.empty() || now.height <= best_.height) accept(now);
      if (best_.height <= target_) break;
      if (idle_ > kPatience)
        restart();
      else
        blame(now);
    }
    return std::move(best_);
  }

 private:
  void accept(const Offsets& now) {
    if (best_.at.empty() || now.height < best_.height) idle_ = 0;
    best_ = now;
    best_order_ = order_;
  }

  void restart() {
    idle_ = 0;
    order_ = best_order_;
    const std::size_t swaps = 1 + below(4);
    for (std::size_t k = 0; k < swaps; ++k) std::swap(order_[below(order_.size())], order_[below(order_.size())]);
  }

  // Rects that end above a line between the target and the best height move forwards.
  void blame(const Offsets& now) {
    const std::int64_t line = target_ + static_cast<std::int64_t>(below(4)) * (best_.height - target_) / 4;
    for (std::size_t i = 1; i < order_.size(); ++i) {
      const std::int32_t rect = order_[i];
      if (now.at[rect] + instance_.rects[rect].bytes <= line) continue;
      const std::size_t to = i - 1 - below(std::min<std::size_t>(i, 1 + order_.size() / 4));
      std::rotate(order_.begin() + to, order_.begin() + i, order_.begin() + i + 1);
    }
  }

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  const LayoutInstance& instance_;
  std::int64_t target_;
  std::vector<std::int32_t> order_, best_order_;
  Offsets best_;
  int idle_ = 0;
  std::mt19937_64 random_;
};

}  // namespace

Offsets squeaky_wheel(const LayoutInstance& instance, std::vector<std::int32_t> order, std::int64_t target,
                      std::int64_t& work, std::uint64_t seed, const std::function<bool()>& should_stop) {
  return Wheel(instance, std::move(order), target, seed).run(work, should_stop);
}

}  // namespace stowage
