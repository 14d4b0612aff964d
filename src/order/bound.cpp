#include "order/bound.h"

#include <algorithm>
#include <numeric>

#include "order/min_cut.h"

namespace stowage {

std::int64_t cut_bound(const OrderProblem& problem, const std::vector<std::int64_t>& live, std::size_t cuts, std::int64_t enough,
                       std::int64_t& work) {
  if (live.empty()) return problem.base;
  std::vector<std::int32_t> heaviest(live.size());
  std::iota(heaviest.begin(), heaviest.end(), 0);
  const auto end = heaviest.begin() + static_cast<std::ptrdiff_t>(std::min(cuts, heaviest.size()));
  std::partial_sort(heaviest.begin(), end, heaviest.end(),
                    [&](std::int32_t a, std::int32_t b) { return live[a] != live[b] ? live[a] > live[b] : a < b; });
  std::int64_t bound = *std::max_element(live.begin(), live.end());
  for (auto v = heaviest.begin(); v != end && bound < enough && work > 0; ++v)
    bound = std::max(bound, min_cut(problem, *v, CutSide::kSmallest, work).step_bytes);
  return bound;
}

}  // namespace stowage
