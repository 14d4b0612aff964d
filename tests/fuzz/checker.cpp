// The checker on changed plans: valid ones that a planner made, changed as careless planners would and as strangers
// would. It ends in a verdict, the same as the slow checker's.
#include <limits>
#include <random>

#include "fuzz/decode_graph.h"
#include "fuzz/target.h"
#include "stowage/check.h"
#include "support/naive_checker.h"
#include "support/random_plan.h"

namespace stowage::fuzz {
namespace {

constexpr std::array<std::int64_t, 6> kFar = {-1,
                                              1 << 20,
                                              std::int64_t{1} << 31,
                                              std::int64_t{1} << 53,
                                              std::numeric_limits<std::int64_t>::max(),
                                              std::numeric_limits<std::int64_t>::min()};

std::int64_t number(ByteSource& bytes, std::int64_t most) {
  return bytes.chance(10) ? bytes.pick(kFar) : bytes.draw(0, most);
}
std::int32_t number32(ByteSource& bytes, std::size_t most) {
  return static_cast<std::int32_t>(number(bytes, static_cast<std::int64_t>(most)));
}

template <class T>
T* any(ByteSource& bytes, std::vector<T>& list) {
  return list.empty() ? nullptr : &list[static_cast<std::size_t>(bytes.draw(0, std::ssize(list) - 1))];
}

// One field becomes something else.
void overwrite(ByteSource& bytes, const Graph& graph, Plan& plan) {
  Step* const step = any(bytes, plan.steps);
  Placement* const placement = any(bytes, plan.placements);
  ScratchPlacement* const scratch = any(bytes, plan.scratch);
  const std::int64_t arena = plan.arena_bytes;
  switch (bytes.draw(0, 12)) {
    case 0:
      if (step != nullptr) step->op = OpId(number32(bytes, graph.ops.size()));
      break;
    case 1:
      if (step != nullptr) step->kind = static_cast<Step::Kind>(bytes.draw(0, 2));
      break;
    case 2:
      if (step != nullptr) step->buffer = BufferId(number32(bytes, graph.buffers.size()));
      break;
    case 3:
      if (step != nullptr) step->until = number32(bytes, plan.steps.size() + 1);
      break;
    case 4:
      if (placement != nullptr) placement->buffer = BufferId(number32(bytes, graph.buffers.size()));
      break;
    case 5:
      if (placement != nullptr) placement->from = number32(bytes, plan.steps.size() + 1);
      break;
    case 6:
      if (placement != nullptr) placement->to = number32(bytes, plan.steps.size() + 1);
      break;
    case 7:
      if (placement != nullptr)
        placement->offset =
            bytes.chance(70) ? bytes.draw(0, arena > 0 ? arena / graph.align : 1) * graph.align : number(bytes, 64);
      break;
    case 8:
      if (scratch != nullptr) scratch->step = number32(bytes, plan.steps.size() + 1);
      break;
    case 9:
      if (scratch != nullptr) scratch->index = number32(bytes, 3);
      break;
    case 10:
      if (scratch != nullptr) scratch->offset = number(bytes, arena > 0 ? arena : 1);
      break;
    case 11: plan.arena_bytes = number(bytes, arena > 0 ? arena : 1); break;
    default: plan.align = number(bytes, 64); break;
  }
}

bool judge(const Graph& graph, const Plan& plan) {
  const CheckReport report = check(graph, plan);
  const auto peak = testing::naive_peak(graph, plan);
  require(report.valid == peak.has_value(), "both checkers agree on what is valid");
  require(report.peak_bytes == peak.value_or(0), "both checkers agree on the peak");
  require(report.valid == report.message.empty(), "a plan is valid, or the checker says why not");
  require(report.message.find('\n') == std::string::npos, "a verdict is one line");
  return report.valid;
}

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::ByteSource bytes(data, size);
  const bool planned = bytes.chance(10);
  const auto graph = fuzz::decode_graph(bytes, 9);
  if (!graph) return 0;
  PlanOptions quick;
  quick.order_node_budget = quick.layout_node_budget = 50;
  Plan plan = planned ? *stowage::plan(*graph, quick).plan : testing::simple_plan(*graph);
  fuzz::require(fuzz::judge(*graph, plan), "what a planner makes is valid");
  for (int changes = 0; changes < 40; ++changes) {
    Plan changed = plan;
    if (bytes.chance(40)) {
      fuzz::overwrite(bytes, *graph, changed);
    } else {
      std::mt19937_64 random(static_cast<std::uint64_t>(bytes.draw(0, 65'535)));
      changed = testing::mutate(*graph, std::move(changed), random);
    }
    // Only a valid plan is changed further: what is broken in many ways says little.
    const bool small = changed.steps.size() < 30 && changed.arena_bytes < std::int64_t{1} << 60;
    if (fuzz::judge(*graph, changed) && small) plan = std::move(changed);
    if (bytes.empty()) break;
  }
  return 0;
}
