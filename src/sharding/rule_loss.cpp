// Losses. A mean over rows that are cut is not the mean of the parts' means: parts may be uneven, and rows may be
// ignored.
//
//   nll_loss     self [N, C]   target [N]   out, total_weight         "sum_over_total": the kernel runs with reduction sum, both
//                S0            S0           R    R                    results are added up over the axis, and out /= total_weight.
//                S1            R            R    R                    Classes that other devices have are ignored.
//   ... backward divides by the total weight that it is given, so that its parts are right as they are; over classes, "classes_of_part".
#include <set>

#include "sharding/rules.h"

namespace stowage {
namespace {

enum Reduction : std::int64_t { kNone = 0, kMean = 1, kSum = 2 };

bool nll(const UnitView& unit, OpRule& rule) {
  const int self = unit.slot_of("self"), target = unit.slot_of("target"), grad = unit.slot_of("grad_output");
  if (self < 0 || target < 0 || unit.shape(self).size() < 2) return false;
  const std::int64_t reduction = unit.integer("reduction", kMean);
  const bool backward = unit.name.ends_with("backward"), classes = reduction != kNone && unit.slot_of("weight") < 0;
  AxisRow rows = whole_row(unit), columns = whole_row(unit);
  rows.in[static_cast<std::size_t>(self)] = rows.in[static_cast<std::size_t>(target)] = shard(0);
  columns.in[static_cast<std::size_t>(self)] = shard(1);
  if (backward) {
    if (grad >= 0 && reduction == kNone) rows.in[static_cast<std::size_t>(grad)] = shard(0);
    rows.out[0] = shard(0);
    columns.out[0] = shard(1);
    rule.rows.push_back(std::move(rows));
    set_recipe("classes_of_part", 0, rule);
  } else if (reduction == kNone) {
    rows.out[0] = shard(0);
    if (rows.out.size() > 1) rows.out[1] = kPartSum;
    rule.rows.push_back(std::move(rows));
  } else {
    set_recipe("sum_over_total", reduction == kMean ? 8 : 0, rule);
    if (reduction == kSum)
      for (AxisRow* row : {&rows, &columns})
        for (AxisCode& code : row->out) code = kPartSum;
    rule.rows.push_back(std::move(rows));
  }
  if (classes && unit.shape(self)[1] > 1) rule.rows.push_back(std::move(columns));
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
  static const std::set<std::string, std::less<>> rows = {"nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward",
                                                          "nll_loss2d_backward"};
  static const std::set<std::string, std::less<>> elements = {"mse_loss",       "mse_loss_backward",
                                                              "smooth_l1_loss", "smooth_l1_loss_backward",
                                                              "huber_loss",     "huber_loss_backward"};
  if (rows.contains(unit.name)) return nll(unit, rule);
  return elements.contains(unit.name) && elementwise(unit, rule);
}

}  // namespace stowage
