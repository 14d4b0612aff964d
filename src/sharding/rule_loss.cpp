// Losses. A mean over rows that are cut is not the mean of the parts' means: parts may be uneven, and rows may be ignored.
//
//   nll_loss     self [N, C]   target [N]   out, total_weight         "sum_over_total": the kernel runs with reduction sum, both
//                S0            S0           R    R                    results are added up over the axis, and out /= total_weight.
//   ... backward divides by the total weight that it is given, so that its parts are right as they are.
#include <set>

#include "sharding/rules.h"

namespace stowage {
namespace {

enum Reduction : std::int64_t { kNone = 0, kMean = 1, kSum = 2 };

bool nll(const UnitView& unit, OpRule& rule) {
  const int self = unit.slot_of("self"), target = unit.slot_of("target"), grad = unit.slot_of("grad_output");
  if (self < 0 || target < 0 || unit.shape(self).size() < 2) return false;
  const std::int64_t reduction = unit.integer("reduction", kMean);
  AxisRow row = whole_row(unit);
  row.in[static_cast<std::size_t>(self)] = row.in[static_cast<std::size_t>(target)] = shard(0);
  if (unit.name.ends_with("backward")) {
    if (grad >= 0 && reduction == kNone) row.in[static_cast<std::size_t>(grad)] = shard(0);
    row.out[0] = shard(0);
  } else if (reduction == kNone) {
    row.out[0] = shard(0);
    if (row.out.size() > 1) row.out[1] = kPartSum;
  } else if (reduction == kSum) {
    for (AxisCode& code : row.out) code = kPartSum;
  } else {
    rule.recipe = "sum_over_total";
    rule.recipe_from = static_cast<int>(rule.rows.size());
  }
  rule.rows.push_back(std::move(row));
  return true;
}

bool elementwise(const UnitView& unit, OpRule& rule) {
  const std::int64_t reduction = unit.integer("reduction", kMean);
  const bool backward = unit.name.ends_with("backward");
  const int self = unit.slot_of("self"), target = unit.slot_of("target");
  if (self < 0 || target < 0 || unit.shape(self) != unit.shape(target)) return false;
  if (backward && reduction == kMean) {
    rule.why = unit.op().target + " with reduction mean divides by the size of its part";
    return true;
  }
  for (int d = 0; d < static_cast<int>(unit.shape(self).size()); ++d) {
    AxisRow row = whole_row(unit);
    for (int s = 0; s < unit.slots(); ++s)
      if (unit.shape(s).size() == unit.shape(self).size()) row.in[static_cast<std::size_t>(s)] = shard(d);
    row.out[0] = backward || reduction == kNone ? shard(d) : reduction == kSum ? kPartSum : kPartAvg;
    if (row.out[0] == kPartAvg) rule.even.push_back({false, self, d});
    rule.rows.push_back(std::move(row));
  }
  return true;
}

}  // namespace

bool loss_rule(const UnitView& unit, OpRule& rule) {
  static const std::set<std::string, std::less<>> rows = {"nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"};
  static const std::set<std::string, std::less<>> elements = {"mse_loss", "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss",
                                                              "huber_loss_backward"};
  if (rows.contains(unit.name)) return nll(unit, rule);
  return elements.contains(unit.name) && elementwise(unit, rule);
}

}  // namespace stowage
