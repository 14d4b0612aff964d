// Element by element, with broadcasting: a dimension of the result is cut in every input that has it; inputs that are
// broadcast along it stay whole.
//
//   add      x [B, S, H]   bias [H]   out          Linear ops also pass partial sums: both summands of a sum, one factor of a product.
//            S0            R          S0
//            S2            S0         S2
#include <set>

#include "sharding/rules.h"

namespace stowage {
namespace {

using Names = std::set<std::string, std::less<>>;

const Names& pointwise_names() {
  static const Names names = {"abs",
                              "add",
                              "addcdiv",
                              "addcmul",
                              "alias",
                              "atan",
                              "bitwise_and",
                              "bitwise_not",
                              "bitwise_or",
                              "bitwise_xor",
                              "ceil",
                              "celu",
                              "clamp",
                              "clamp_max",
                              "clamp_min",
                              "clone",
                              "copy",
                              "cos",
                              "detach",
                              "div",
                              "elu",
                              "elu_backward",
                              "empty_like",
                              "eq",
                              "erf",
                              "exp",
                              "exp2",
                              "expm1",
                              "fill",
                              "floor",
                              "fmod",
                              "full_like",
                              "ge",
                              "gelu",
                              "gelu_backward",
                              "gt",
                              "hardsigmoid",
                              "hardsigmoid_backward",
                              "hardswish",
                              "hardswish_backward",
                              "hardtanh",
                              "hardtanh_backward",
                              "isfinite",
                              "isinf",
                              "isnan",
                              "le",
                              "leaky_relu",
                              "leaky_relu_backward",
                              "lerp",
                              "lift_fresh",
                              "log",
                              "log1p",
                              "log2",
                              "log_sigmoid_backward",
                              "logical_and",
                              "logical_not",
                              "logical_or",
                              "logical_xor",
                              "lt",
                              "masked_fill",
                              "maximum",
                              "minimum",
                              "mish",
                              "mish_backward",
                              "mul",
                              "ne",
                              "neg",
                              "ones_like",
                              "pow",
                              "reciprocal",
                              "relu",
                              "remainder",
                              "round",
                              "rsqrt",
                              "rsub",
                              "sgn",
                              "sigmoid",
                              "sigmoid_backward",
                              "sign",
                              "silu",
                              "silu_backward",
                              "sin",
                              "softplus",
                              "softplus_backward",
                              "sqrt",
                              "sub",
                              "square",
                              "tanh",
                              "tanh_backward",
                              "threshold_backward",
                              "to",
                              "_to_copy",
                              "trunc",
                              "where",
                              "zero",
                              "zeros_like"};
  return names;
}

// The dimension of `in` that lies under dimension `d` of `out`; -1 when it is broadcast there.
int under(const UnitView::Shape& in, const UnitView::Shape& out, int d) {
  const int own = d - static_cast<int>(out.size()) + static_cast<int>(in.size());
  if (own < 0 || in[static_cast<std::size_t>(own)] != out[static_cast<std::size_t>(d)]) return -1;
  return own;
}

AxisRow cut_row(const UnitView& unit, const UnitView::Shape& whole, int d) {
  AxisRow row = whole_row(unit);
  for (int s = 0; s < unit.slots(); ++s) {
    const int own = under(unit.shape(s), whole, d);
    if (own >= 0) row.in[static_cast<std::size_t>(s)] = shard(own);
  }
  for (AxisCode& code : row.out) code = shard(d);
  return row;
}

// Both summands partial; or one factor (the first) partial and the other whole.
void add_partial_rows(const UnitView& unit, OpRule& rule) {
  if (unit.outputs() != 1 || unit.given("rounding_mode")) return;
  AxisRow row = whole_row(unit);
  row.out[0] = kPartSum;
  row.in[0] = kPartSum;
  if ((unit.name == "add" || unit.name == "sub") && unit.slots() == 2 && unit.shape(0) == unit.shape(1)) {
    row.in[1] = kPartSum;
    rule.rows.push_back(row);
  } else if ((unit.name == "mul" || unit.name == "div") && unit.slots() == 2 && unit.shape(0) == unit.out_shape(0)) {
    rule.rows.push_back(row);
  }
}

bool is_linear_alone(const UnitView& unit) {
  static const Names names = {"alias", "clone", "detach", "div", "lift_fresh", "mul", "neg"};
  return unit.slots() == 1 && names.contains(unit.name) && !unit.given("rounding_mode");
}

}  // namespace

bool pointwise_rule(const UnitView& unit, OpRule& rule) {
  if (!pointwise_names().contains(unit.name) || unit.slots() == 0) return false;
  const UnitView::Shape whole = unit.has_output(0) ? unit.out_shape(0) : unit.shape(0);
  for (int d = 0; d < static_cast<int>(whole.size()); ++d)
    if (whole[static_cast<std::size_t>(d)] > 1) rule.rows.push_back(cut_row(unit, whole, d));
  rule.follows = unit.slots() == 1 && unit.outputs() == 1 && !unit.written(0) && unit.shape(0) == whole;
  rule.linear = rule.follows && is_linear_alone(unit);
  add_partial_rows(unit, rule);
  return true;
}

}  // namespace stowage
