#include "roam/segments.h"

#include <algorithm>

namespace stowage::roam {

std::vector<std::int32_t> insensitive(const Csr& preds, const std::vector<char>& ignored) {
  const auto n = static_cast<std::int32_t>(preds.rows());
  const auto none = n;
  std::vector<std::int32_t> first_succ(n, none), last_pred(n, -1);
  for (std::int32_t v = 0; v < n; ++v)
    for (const std::int32_t p : preds[v]) {
      if (ignored[v] || ignored[p]) continue;
      first_succ[p] = std::min(first_succ[p], v);
      last_pred[v] = std::max(last_pred[v], p);
    }
  // Sinks of the ops up to v: those whose first successor comes after v.
  std::vector<std::int32_t> ends(n + 1, 0), only(n, 0);
  std::int32_t sinks = 0;
  for (std::int32_t v = 0; v < n; ++v) {
    if (ignored[v]) continue;
    sinks += 1 - ends[v];
    ++ends[first_succ[v]];
    only[v] += sinks == 1;
  }
  std::fill(ends.begin(), ends.end(), 0);
  std::int32_t sources = 0;
  for (std::int32_t v = n - 1; v >= 0; --v) {
    if (ignored[v]) continue;
    sources += 1 - ends[v];
    if (last_pred[v] >= 0) ++ends[last_pred[v]];
    only[v] += sources == 1;
  }
  std::vector<std::int32_t> result;
  for (std::int32_t v = 0; v < n; ++v)
    if (only[v] == 2) result.push_back(v);
  return result;
}

}  // namespace stowage::roam
