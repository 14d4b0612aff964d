#include "stowage/layout.h"

#include <algorithm>
#include <numeric>

#include "layout/instance.h"
#include "layout/list_fit.h"
#include "layout/sweep_fit.h"

namespace stowage {

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOptimal: return "optimal";
    case Outcome::kFeasible: return "feasible";
    case Outcome::kInfeasible: return "infeasible";
    case Outcome::kUnknown: return "unknown";
  }
  return "unknown";
}

LayoutResult layout(const std::vector<LayoutItem>& items, const LayoutOptions& options) {
  const LayoutInstance instance = make_instance(items, options.align);
  Offsets best = sweep_fit(instance, SweepRule::kBestFit);
  std::vector<std::int32_t> order(instance.rects.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) {
    const Rect &x = instance.rects[a], &y = instance.rects[b];
    if (x.bytes != y.bytes) return x.bytes > y.bytes;
    return a < b;
  });
  if (order.size() < 60000) {
    Offsets o = list_fit(instance, order, Gap::kLowest);
    if (o.height < best.height) best = o;
  }
  LayoutResult result;
  result.offsets.assign(items.size(), 0);
  for (std::size_t r = 0; r < best.at.size(); ++r) result.offsets[instance.item[r]] = best.at[r];
  result.height_bytes = best.height;
  result.lower_bound_bytes = instance.bound;
  result.outcome = best.height == instance.bound ? Outcome::kOptimal : Outcome::kFeasible;
  return result;
}

}  // namespace stowage
