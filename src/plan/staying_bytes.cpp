#include "stowage/plan.h"

namespace stowage {

std::int64_t staying_bytes(const Graph& graph, const Plan& plan) {
  std::int64_t sum = resident_bytes(graph);
  for (const BufferId b : plan.away) sum -= graph.buffer(b).bytes;
  return sum;
}

}  // namespace stowage
