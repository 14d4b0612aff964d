// Steps whose best plan is a mix: copies on lanes that are busy, runs again of what is made from the same parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "stowage/planner.h"
#include "support/builder.h"

namespace stowage::testing {
namespace {

// A chain as of a convolutional net: every second op is dear, and what the first third makes is large. Backward reads all
// of it, last first.
Graph chain(int length) {
  GraphBuilder g;
  const int input = g.resident(1'000'000);
  std::vector<int> made{input};
  std::vector<std::int64_t> bytes{1'000'000}, cost{0};
  for (int i = 0; i < length; ++i) {
    const int large = i < length / 3 ? 4 : 1;
    bytes.push_back(1'000'000 * large);
    cost.push_back(i % 2 == 0 ? 200'000 : 40'000 * large);
    made.push_back(g.buffer(bytes.back()));
    g.op({made[made.size() - 2]}, {}, {made.back()}).cost_ns = cost.back();
  }
  int gradient = g.buffer(1000);
  g.op({made.back()}, {}, {gradient}).cost_ns = 1000;
  for (std::size_t i = made.size() - 1; i > 0; --i) {
    const int next = i > 1 ? g.buffer(bytes[i]) : g.returned(1000);
    g.op({made[i - 1], made[i], gradient}, {}, {next}).cost_ns = 2 * cost[i];
    gradient = next;
  }
  return g.build();
}

// A densely connected block: each layer concatenates what all before it have made, makes it anew element by element, and
// adds a part of its own. Backward needs the concatenations, and no part.
Graph dense_block(int layers) {
  constexpr std::int64_t kUnit = 1024;
  GraphBuilder g;
  const int input = g.resident(2 * kUnit);
  struct Layer {
    int concatenated, activated;
    std::int64_t width;
  };
  std::vector<int> parts;
  std::vector<std::int64_t> widths;
  std::int64_t width = 0;
  const auto add_part = [&](std::int64_t of, int from, std::int64_t cost) {
    parts.push_back(g.buffer(of * kUnit));
    g.op({from}, {}, {parts.back()}).cost_ns = cost;
    widths.push_back(of);
    width += of;
  };
  const auto concatenate = [&] {
    const int made = g.buffer(width * kUnit);
    Op& op = g.op({}, {}, {made});
    for (const int part : parts) op.reads.emplace_back(part);
    op.cost_ns = 1000 * width;
    return made;
  };
  add_part(2, input, 2000);
  std::vector<Layer> made;
  for (int i = 0; i < layers; ++i) {
    const int concatenated = concatenate(), activated = g.buffer(width * kUnit);
    g.op({concatenated}, {}, {activated}).cost_ns = 1000 * width;
    made.push_back({concatenated, activated, width});
    add_part(1, activated, 20'000);
  }
  const int last = concatenate(), gradient = g.buffer(width * kUnit);
  g.op({last}, {}, {gradient}).cost_ns = 1000 * width;
  std::vector<int> gradients;
  for (const std::int64_t of : widths) {
    gradients.push_back(g.buffer(of * kUnit));
    g.op({gradient}, {}, {gradients.back()}).cost_ns = 1000 * of;
  }
  for (std::size_t i = made.size(); i-- > 0;) {
    const int to_activated = g.buffer(made[i].width * kUnit), to_concatenated = g.buffer(made[i].width * kUnit);
    g.op({gradients[i + 1], made[i].activated}, {}, {to_activated}).cost_ns = 40'000;
    g.op({to_activated, made[i].concatenated, made[i].activated}, {}, {to_concatenated}).cost_ns = 2000 * made[i].width;
    for (std::size_t j = 0; j <= i; ++j) {
      const int part = g.buffer(widths[j] * kUnit), sum = g.buffer(widths[j] * kUnit);
      g.op({to_concatenated}, {}, {part}).cost_ns = 1000 * widths[j];
      g.op({gradients[j], part}, {}, {sum}).cost_ns = 1000 * widths[j];
      gradients[j] = sum;
    }
  }
  g.op({gradients[0]}, {}, {g.returned(2 * kUnit)}).cost_ns = 2000;
  return g.build();
}

PlanResult plan_within(const Graph& graph, const PlanResult& free, int percent, double link_gbps) {
  PlanOptions options;
  options.link_gbps = link_gbps;
  options.budget_bytes = free.resident_bytes + free.plan->arena_bytes * percent / 100;
  return plan(graph, options);
}

// Copies that are chosen together share the lanes: none may be late because another took its time there.
TEST(Mix, CopiesAndRunsAgainComeCloseToTheBoundOverAnyLink) {
  const Graph graph = chain(150);
  const PlanResult free = plan(graph, {});
  for (const int percent : {70, 50, 35}) {
    std::int64_t before = std::numeric_limits<std::int64_t>::max();
    for (const double link : {0.0, 2.0, 4.0, 8.0, 16.0}) {
      SCOPED_TRACE(std::to_string(percent) + " % at " + std::to_string(link) + " GB/s");
      const PlanResult result = plan_within(graph, free, percent, link);
      ASSERT_TRUE(result.plan.has_value());
      EXPECT_LE(static_cast<double>(result.step_ns), 1.012 * static_cast<double>(*result.step_bound_ns));
      EXPECT_LE(result.step_ns, before) << "slower over a faster link";
      before = result.step_ns;
    }
  }
}

// To make one concatenation again, its parts must stay, which saves nothing; to make all of them again does.
TEST(Mix, ConcatenationsOfTheSamePartsAreMadeAgainTogether) {
  const Graph graph = dense_block(12);
  const PlanResult free = plan(graph, {});
  for (const auto& [percent, most] : {std::pair{80, 1.002}, {60, 1.007}, {40, 1.015}}) {
    SCOPED_TRACE(std::to_string(percent) + " %");
    const PlanResult result = plan_within(graph, free, percent, 0);
    ASSERT_TRUE(result.plan.has_value());
    EXPECT_LE(static_cast<double>(result.step_ns), most * static_cast<double>(*result.step_bound_ns));
  }
}

}  // namespace
}  // namespace stowage::testing
