#include "support/broken_plan.h"

#include <gtest/gtest.h>

#include "stowage/check.h"
#include "support/naive_checker.h"

namespace stowage::testing {

void expect_each_is_named(const Example& valid, std::span<const BrokenPlan> broken_plans) {
  for (const BrokenPlan& broken : broken_plans) {
    SCOPED_TRACE(broken.name);
    Plan plan = valid.plan;
    broken.damage(plan);
    const CheckReport report = check(valid.graph, plan);
    EXPECT_EQ(report.rule, broken.rule) << report.message;
    EXPECT_NE(report.message.find(broken.message), std::string::npos) << report.message;
    EXPECT_FALSE(naive_peak(valid.graph, plan).has_value());
  }
}

}  // namespace stowage::testing
