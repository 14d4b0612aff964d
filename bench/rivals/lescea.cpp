#include "rivals/lescea.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "rivals/list_scheduler.h"

namespace stowage::rivals {

std::vector<OpId> lescea_order(const Graph& graph) {
  std::vector<std::int32_t> by_name(graph.ops.size());
  std::iota(by_name.begin(), by_name.end(), 0);
  std::sort(by_name.begin(), by_name.end(), [&](const std::int32_t& a, const std::int32_t& b) {
    return std::tie(graph.ops[static_cast<std::size_t>(a)].name, a) <
           std::tie(graph.ops[static_cast<std::size_t>(b)].name, b);
  });
  ListRule rule;
  rule.rank.resize(by_name.size());
  for (std::size_t i = 0; i < by_name.size(); ++i)
    rule.rank[static_cast<std::size_t>(by_name[i])] = static_cast<std::int32_t>(i);
  return list_schedule(graph, rule);
}

}  // namespace stowage::rivals
