// Matrix products. Rows of the left, columns of the right, or the dimension that is summed over (which leaves partial
// sums):
//
//   a [m, k]   b [k, n]   out          with a bias: the bias is cut as the columns are; under partial sums it is a partial sum
//   S0         R          S0           itself, kept on one device
//   R          S1         S1
//   S1         S0         Psum
#include "sharding/rules.h"

namespace stowage {
namespace {

struct Operands {
  int left = -1, right = -1, bias = -1;
};

Operands operands(const UnitView& unit) {
  Operands o;
  if (unit.name == "mm" || unit.name == "_int_mm") o = {unit.slot_of("self"), unit.slot_of("mat2"), -1};
  if (unit.name == "bmm") o = {unit.slot_of("self"), unit.slot_of("mat2"), -1};
  if (unit.name == "addmm") o = {unit.slot_of("mat1"), unit.slot_of("mat2"), unit.slot_of("self")};
  if (unit.name == "baddbmm") o = {unit.slot_of("batch1"), unit.slot_of("batch2"), unit.slot_of("self")};
  return o;
}

AxisCode bias_code(const UnitView& unit, int bias, int out_dim) {
  const auto shape = unit.shape(bias);
  const int own = out_dim - static_cast<int>(unit.out_shape(0).size()) + static_cast<int>(shape.size());
  return own >= 0 && shape[static_cast<std::size_t>(own)] > 1 ? shard(own) : kWhole;
}

void add(const UnitView& unit, const Operands& o, AxisCode left, AxisCode right, AxisCode out, OpRule& rule) {
  AxisRow row = whole_row(unit);
  row.in[static_cast<std::size_t>(o.left)] = left;
  row.in[static_cast<std::size_t>(o.right)] = right;
  if (o.bias >= 0) row.in[static_cast<std::size_t>(o.bias)] = out > 0 ? bias_code(unit, o.bias, out - 1) : out;
  row.out[0] = out;
  rule.rows.push_back(std::move(row));
}

}  // namespace

bool matmul_rule(const UnitView& unit, OpRule& rule) {
  const Operands o = operands(unit);
  if (o.left < 0 || o.right < 0 || unit.outputs() != 1) return false;
  const int batch = unit.name == "bmm" || unit.name == "baddbmm" ? 1 : 0;
  if (batch) add(unit, o, shard(0), shard(0), shard(0), rule);
  add(unit, o, shard(batch), kWhole, shard(batch), rule);
  add(unit, o, kWhole, shard(batch + 1), shard(batch + 1), rule);
  add(unit, o, shard(batch + 1), shard(batch), kPartSum, rule);
  return true;
}

}  // namespace stowage
