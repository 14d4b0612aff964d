#include "sharding/rules.h"

#include <array>
#include <set>

#include "base/concat.h"

namespace stowage {
namespace {

bool draws_random_numbers(const UnitView& unit) {
  static const std::set<std::string, std::less<>> names = {
      "native_dropout", "dropout", "bernoulli", "rand",        "randn",       "rand_like", "randn_like",      "normal",
      "uniform",        "randint", "randperm",  "multinomial", "exponential", "random",    "rrelu_with_noise"};
  return names.contains(unit.name) ||
         (unit.name.find("attention") != std::string::npos && unit.number("dropout_p", 0) > 0);
}

bool has_dimensions(const UnitView& unit) {
  for (int s = 0; s < unit.slots(); ++s)
    for (const std::int64_t size : unit.shape(s))
      if (size > 1) return true;
  return false;
}

// Every cut is one of a dimension that is there, whatever the family took for granted.
void check_rows(const UnitView& unit, const OpRule& rule) {
  const auto check = [](const Sizes& sizes, AxisCode code) {
    if (code != kUntouched && code > static_cast<int>(sizes.size())) throw Misfit();
  };
  for (const AxisRow& row : rule.rows) {
    for (int s = 0; s < unit.slots(); ++s) check(unit.shape(s), row.in[static_cast<std::size_t>(s)]);
    for (int o = 0; o < unit.outputs(); ++o)
      if (unit.has_output(o)) check(unit.out_shape(o), row.out[static_cast<std::size_t>(o)]);
  }
  for (const EvenDim& even : rule.even) {
    if (even.output && !unit.has_output(even.index)) throw Misfit();
    const Sizes sizes = even.output ? unit.out_shape(even.index) : unit.shape(even.index);
    check(sizes, shard(even.dim));
  }
}

}  // namespace

AxisRow whole_row(const UnitView& unit) {
  return {AxisCodes(static_cast<std::size_t>(unit.slots()), kWhole),
          AxisCodes(static_cast<std::size_t>(unit.outputs()), kWhole)};
}

int wrapped(std::int64_t dim, std::size_t rank) {
  const auto dims = static_cast<std::int64_t>(rank);
  if (dim < -dims || dim >= dims) throw Misfit();
  return static_cast<int>(dim < 0 ? dim + dims : dim);
}

void set_recipe(const char* name, std::int64_t bytes, OpRule& rule) {
  rule.recipe = name;
  rule.recipe_from = static_cast<int>(rule.rows.size());
  rule.recipe_bytes = bytes;
}

void add_leading_rows(const UnitView& unit, int dims, OpRule& rule) {
  for (int d = 0; d < dims; ++d) {
    AxisRow row = whole_row(unit);
    for (int s = 0; s < unit.slots(); ++s)
      if (static_cast<int>(unit.shape(s).size()) > d) row.in[static_cast<std::size_t>(s)] = shard(d);
    for (int o = 0; o < unit.outputs(); ++o)
      if (static_cast<int>(unit.out_shape(o).size()) > d) row.out[static_cast<std::size_t>(o)] = shard(d);
    rule.rows.push_back(std::move(row));
  }
}

void add_common_rows(const UnitView& unit, int skipped, OpRule& rule) {
  if (unit.slots() == 0) return;
  const auto rank = static_cast<int>(unit.shape(0).size());
  for (int d = 0; d < rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    bool same = d != skipped && unit.shape(0)[at] > 1;
    for (int s = 1; s < unit.slots() && same; ++s)
      same = unit.shape(s).size() == unit.shape(0).size() && unit.shape(s)[at] == unit.shape(0)[at];
    for (int o = 0; o < unit.outputs() && same; ++o)
      same = !unit.has_output(o) ||
             (unit.out_shape(o).size() == unit.shape(0).size() && unit.out_shape(o)[at] == unit.shape(0)[at]);
    if (!same) continue;
    AxisRow row = whole_row(unit);
    for (AxisCode& code : row.in) code = shard(d);
    for (AxisCode& code : row.out) code = shard(d);
    rule.rows.push_back(std::move(row));
  }
}

OpRule rule_of(const UnitView& unit) {
  constexpr std::array families = {pointwise_rule,     view_rule,      matmul_rule,    reduction_rule,
                                   normalisation_rule, indexing_rule,  attention_rule, convolution_rule,
                                   loss_rule,          optimizer_rule, creation_rule};
  OpRule rule;
  rule.rows.push_back(whole_row(unit));
  if (draws_random_numbers(unit)) {
    rule.random = true;
    rule.why = concat(unit.op().target, " draws random numbers: whole, so that they are those of one device");
    return rule;
  }
  for (const auto& family : families) {
    try {
      if (!family(unit, rule)) continue;
      check_rows(unit, rule);
    } catch (const Misfit&) {
      OpRule whole;
      whole.rows.push_back(whole_row(unit));
      whole.why = concat(unit.op().target, " does not have the arguments and shapes that its rule knows");
      return whole;
    }
    rule.no_empty = family != pointwise_rule && family != view_rule && family != matmul_rule &&
                    family != optimizer_rule && family != creation_rule;
    if (rule.rows.size() == 1 && rule.why.empty() && has_dimensions(unit))
      rule.why = concat(unit.op().target, " needs all of its input");
    return rule;
  }
  rule.why = concat("no rule for ", unit.op().target);
  return rule;
}

}  // namespace stowage
