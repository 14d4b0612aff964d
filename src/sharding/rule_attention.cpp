// Scaled dot-product attention, forward and backward, all kernels: batch and heads may be cut, the sequence may not.
//
//   query [B, h, S, d]   key, value [B, g, T, d]   out [B, h, S, d]   logsumexp [B, h, S]      masks: where they have the dimension
//   S0                   S0                        S0                 S0
//   S1                   S1                        S1                 S1                       g < h: heads and groups in equal parts
#include <set>

#include "sharding/rules.h"

namespace stowage {

bool attention_rule(const UnitView& unit, OpRule& rule) {
  static const std::set<std::string, std::less<>> split = {"query",     "key",  "value",     "out",       "grad_out",
                                                           "grad_out_", "grad", "logsumexp", "attn_mask", "attn_bias"};
  if (unit.name.find("scaled_dot_product") == std::string::npos) return false;
  const int query = unit.slot_of("query"), key = unit.slot_of("key");
  if (query < 0 || key < 0 || unit.shape(query).size() != 4) return false;
  for (int d = 0; d < 2; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const bool grouped = unit.shape(query)[at] != unit.shape(key)[at];
    AxisRow row = whole_row(unit);
    for (int s = 0; s < unit.slots(); ++s) {
      const auto shape = unit.shape(s);
      const bool has = split.contains(unit.argument_of(s)) && shape.size() >= 3 && shape[at] > 1;
      if (!has) continue;
      row.in[static_cast<std::size_t>(s)] = shard(d);
      if (grouped) rule.even.push_back({false, s, d});
    }
    for (int o = 0; o < unit.outputs(); ++o)
      if (unit.out_shape(o).size() >= 3) row.out[static_cast<std::size_t>(o)] = shard(d);
    rule.rows.push_back(std::move(row));
  }
  return true;
}

}  // namespace stowage
