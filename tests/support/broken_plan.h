// A valid plan, damaged in one place at a time: the checker names the rule, and its slow twin refuses the plan too.
#pragma once

#include <functional>
#include <span>

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::testing {

struct Example {
  Graph graph;
  Plan plan;
};

struct BrokenPlan {
  const char* name;
  int rule;
  const char* message;  // in the checker's
  std::function<void(Plan&)> damage;
};

void expect_each_is_named(const Example& valid, std::span<const BrokenPlan> broken_plans);

}  // namespace stowage::testing
