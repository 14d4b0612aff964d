// Fused optimizer updates, one unit for each parameter: element by element in all that has the parameter's shape
// (gradient, moments), whole in the rest (step counts, learning rates). Parameter, gradient and moments need not live
// where the update is computed: that is what shards the state of a parameter that is kept whole.
#include "sharding/rules.h"

namespace stowage {

bool optimizer_rule(const UnitView& unit, OpRule& rule) {
  if (!unit.name.starts_with("_fused_adam") && !unit.name.starts_with("_fused_sgd") &&
      !unit.name.starts_with("_fused_adagrad"))
    return false;
  if (unit.slots() == 0) return false;
  const auto shape = unit.shape(0);
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    if (shape[static_cast<std::size_t>(d)] <= 1) continue;
    AxisRow row = whole_row(unit);
    for (int s = 0; s < unit.slots(); ++s)
      if (unit.shape(s) == shape) row.in[static_cast<std::size_t>(s)] = shard(d);
    rule.rows.push_back(std::move(row));
  }
  return true;
}

}  // namespace stowage
