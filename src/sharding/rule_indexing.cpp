// Rows by number: embedding, index_select, gather, scatter.
//
//   embedding   weight [V, H]   indices [B, S]   out [B, S, H]      its backward: cut along B or S it leaves partial sums of the
//               R               S0               S0                 weight's gradient; cut along H it is exact
//               S1              R                S2
//               S0              R                Psum               "rows_of_part": rows that other devices have are zeros, and in
//                                                                   backward are passed over
#include <set>

#include "sharding/rules.h"

namespace stowage {
namespace {

void add(const UnitView& unit, std::initializer_list<std::pair<int, AxisCode>> in, AxisCode out, OpRule& rule) {
  AxisRow row = whole_row(unit);
  for (const auto& [slot, code] : in) row.in[static_cast<std::size_t>(slot)] = code;
  row.out[0] = out;
  rule.rows.push_back(std::move(row));
}

bool embedding(const UnitView& unit, OpRule& rule) {
  const int weight = unit.slot_of("weight"), indices = unit.slot_of("indices");
  if (weight < 0 || indices < 0) return false;
  const auto rank = static_cast<int>(unit.shape(indices).size());
  for (int d = 0; d < rank; ++d) add(unit, {{indices, shard(d)}}, shard(d), rule);
  add(unit, {{weight, shard(1)}}, shard(rank), rule);
  set_recipe("rows_of_part", 0, rule);
  add(unit, {{weight, shard(0)}}, kPartSum, rule);
  return true;
}

bool embedding_backward(const UnitView& unit, OpRule& rule) {
  const int grad = unit.slot_of("grad_output"), indices = unit.slot_of("indices");
  if (grad < 0 || indices < 0) return false;
  const auto rank = static_cast<int>(unit.shape(indices).size());
  add(unit, {{grad, shard(rank)}}, shard(1), rule);
  if (unit.integer("scale_grad_by_freq", 0) != 0) return true;  // the count of a row is known only where all rows are
  for (int d = 0; d < rank; ++d) add(unit, {{grad, shard(d)}, {indices, shard(d)}}, kPartSum, rule);
  set_recipe("rows_of_part", 0, rule);
  add(unit, {}, shard(0), rule);
  return true;
}

bool index_select(const UnitView& unit, OpRule& rule) {
  const int self = unit.slot_of("self"), index = unit.slot_of("index");
  if (self < 0 || index < 0) return false;
  const int dim = wrapped(unit.integer("dim", 0), unit.shape(self).size());
  for (int d = 0; d < static_cast<int>(unit.shape(self).size()); ++d)
    if (d != dim) add(unit, {{self, shard(d)}}, shard(d), rule);
  if (unit.shape(index).size() == 1) add(unit, {{index, shard(0)}}, shard(dim), rule);
  return true;
}

}  // namespace

bool indexing_rule(const UnitView& unit, OpRule& rule) {
  static const std::set<std::string, std::less<>> along = {"gather", "scatter", "scatter_add", "scatter_reduce"};
  if (unit.name == "embedding") return embedding(unit, rule);
  if (unit.name == "embedding_dense_backward") return embedding_backward(unit, rule);
  if (unit.name == "index_select") return index_select(unit, rule);
  if (!along.contains(unit.name) || unit.slots() == 0) return false;
  add_common_rows(unit, wrapped(unit.integer("dim", 0), unit.shape(0).size()), rule);
  return true;
}

}  // namespace stowage
