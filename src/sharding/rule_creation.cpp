// Tensors out of nothing. A constant is the same in every part, so each device makes its own; of a tensor argument only
// type and device are looked at.
#include <set>

#include "sharding/rules.h"

namespace stowage {

bool creation_rule(const UnitView& unit, OpRule& rule) {
  static const std::set<std::string, std::less<>> constants = {
      "zeros",    "ones",      "full",          "empty",         "new_zeros",        "new_ones",
      "new_full", "new_empty", "scalar_tensor", "empty_strided", "new_empty_strided"};
  static const std::set<std::string, std::less<>> whole = {"arange", "linspace", "eye", "lift_fresh_copy"};
  if (whole.contains(unit.name)) return true;
  if (!constants.contains(unit.name) || unit.outputs() != 1) return false;
  for (AxisCode& code : rule.rows[0].in) code = kUntouched;
  const auto shape = unit.out_shape(0);
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (shape[static_cast<std::size_t>(d)] <= 1) continue;
    AxisRow row = whole_row(unit);
    for (AxisCode& code : row.in) code = kUntouched;
    row.out[0] = shard(d);
    rule.rows.push_back(std::move(row));
  }
  return true;
}

}  // namespace stowage
