// Explain: where the bytes of a plan go, what holds its peak, what other budgets would cost, and what to change in the
// code.
//
//   graph, plan ──▶ peak_moment() ──▶ rules (explain/advice.h) ──▶ Explanation ──▶ to_text(): one screen
//                                     each change planned again        └─────────▶ to_json()
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stowage/graph.h"
#include "stowage/plan.h"
#include "stowage/planner.h"

namespace stowage {

// What is live at the plan's heaviest tick.
struct PeakHolder {
  BufferId buffer;         // not valid: scratch of the op that runs
  std::int64_t bytes = 0;  // padded
  OpId maker;              // of this content on the device; not valid when it came back from the host
  OpId last_user;          // before it leaves the device
};
struct PeakMoment {
  std::int32_t step = -1;
  OpId op;  // that runs then; not valid for a plan without placements
  std::int64_t bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::array<std::int64_t, kBufferKindNames.size()> of_kind{};
  std::vector<PeakHolder> holders;  // largest first; their bytes add up to `bytes`
};

// `plan` must have passed check(). The earliest of several equal peaks. O(P log P + the sizes of the ops that run).
PeakMoment peak_moment(const Graph& graph, const Plan& plan);

// A budget, planned for real.
struct Price {
  std::int64_t budget_bytes = 0;
  PlanResult result;
};

// One thing to change in the code of the step. `rule` names the rule of explain/advice.h that found it.
struct Advice {
  std::string rule;
  std::string text;
  std::int64_t held_bytes = 0;  // what the finding is about
  // Of a real plan of the graph with the change made, where that can be written as a graph
  std::optional<std::int64_t> arena_bytes = {};
};

struct ExplainOptions {
  PlanOptions plan;
  bool prices = true;                       // plan other budgets, too
  std::int64_t price_work = 2'500'000'000;  // for all of them, about a nanosecond a unit; those beyond it are left out
  bool advice = true;
};

struct Explanation {
  PlanResult result;  // what is explained; of a given plan: its bytes and times, with the bound of the graph
  std::int64_t free_arena_bytes = 0;  // of the plan without a limit
  PeakMoment peak;
  std::array<std::int64_t, kBufferKindNames.size()> resident_of_kind{};
  std::vector<Price> prices;        // from the largest budget down; ends with the first that has no plan
  std::size_t prices_left_out = 0;  // smaller budgets that ExplainOptions::price_work was not enough for
  std::vector<Advice> advice;
};

// `plan`: the one to explain, which must have passed check(); none: the graph is planned with the options. Without a
// plan in the result (the budget cannot be met) there is no peak and no advice.
Explanation explain(const Graph& graph, const std::optional<Plan>& plan, const ExplainOptions& options);

// About forty lines of at most `width` columns (at least 60).
std::string to_text(const Graph& graph, const Explanation& explanation, int width = 100);
std::string to_json(const Graph& graph, const Explanation& explanation);

// "train.py:21" of the op's meta as capture writes it, with its folders; empty when it has none.
std::string source_line(const Op& op);

}  // namespace stowage
