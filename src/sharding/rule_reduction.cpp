// Reductions over some dimensions. A cut of a dimension that stays passes; a cut of one that is reduced leaves partial
// results, which for a mean are right only over equal parts. Also ops that work within one dimension (softmax, sort,
// cumsum): all others pass.
//
//   p-norm         x S0   out R        "norm_of_parts": the root of the sum of the parts' powers
//   _log_softmax   x S1   out S1       "softmax_of_parts", dim 1: the largest number and the sum are those of all parts
#include <algorithm>
#include <iterator>
#include <set>

#include "sharding/rules.h"

namespace stowage {
namespace {

// What the parts of a cut that is reduced are to each other; kWhole: nothing, so there is no row.
AxisCode partial_of(const std::string& name) {
  if (name == "sum") return kPartSum;
  if (name == "mean") return kPartAvg;
  if (name == "amax" || name == "max") return kPartMax;
  return kWhole;
}

bool is_norm(const UnitView& unit) {
  return (unit.name == "linalg_vector_norm" ||
          (unit.name == "norm" && unit.op().target.find("_foreach_norm") != std::string::npos)) &&
         unit.number("ord", 2) > 0;
}

std::int64_t numbers(const UnitView::Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

bool reduces(const UnitView& unit, OpRule& rule) {
  const auto rank = unit.shape(0).size();
  std::vector<std::int64_t> dims = unit.integers("dim");
  if (dims.empty())
    for (std::size_t d = 0; d < rank; ++d) dims.push_back(static_cast<std::int64_t>(d));
  const bool keepdim = unit.integer("keepdim", 0) != 0;
  std::vector<AxisRow> norms;
  int removed = 0;
  for (int d = 0; d < static_cast<int>(rank); ++d) {
    const bool reduced = std::any_of(dims.begin(), dims.end(), [&](std::int64_t r) { return wrapped(r, rank) == d; });
    AxisRow row = whole_row(unit);
    row.in[0] = shard(d);
    AxisCode left = reduced ? partial_of(unit.name) : shard(keepdim ? d : d - removed);
    removed += reduced;
    if (unit.shape(0)[static_cast<std::size_t>(d)] <= 1) continue;
    if (reduced && is_norm(unit)) norms.push_back(row);
    if (reduced && left == kWhole) continue;
    if (reduced && unit.outputs() > 1) continue;  // values with their places
    if (left == kPartAvg) rule.even.push_back({false, 0, d});
    for (AxisCode& code : row.out) code = left;
    rule.rows.push_back(std::move(row));
  }
  if (!norms.empty()) {
    set_recipe("norm_of_parts", 4 * numbers(unit.out_shape(0)), rule);
    std::move(norms.begin(), norms.end(), std::back_inserter(rule.rows));
  }
  if (unit.name == "sum" && unit.slots() == 1 && unit.outputs() == 1) {
    AxisRow row = whole_row(unit);
    row.in[0] = row.out[0] = kPartSum;
    rule.rows.push_back(std::move(row));
  }
  return true;
}

// Dimension d of all slots and outputs.
void add_cut(const UnitView& unit, int d, OpRule& rule) {
  if (unit.shape(0)[static_cast<std::size_t>(d)] <= 1) return;
  AxisRow row = whole_row(unit);
  for (AxisCode& code : row.in) code = shard(d);
  for (AxisCode& code : row.out) code = shard(d);
  rule.rows.push_back(std::move(row));
}

}  // namespace

bool reduction_rule(const UnitView& unit, OpRule& rule) {
  static const std::set<std::string, std::less<>> reducing = {
      "sum",  "mean",   "amax",   "amin", "any", "all", "var", "std", "var_mean", "logsumexp", "linalg_vector_norm",
      "norm", "argmax", "argmin", "prod", "max", "min"};
  static const std::set<std::string, std::less<>> within = {
      "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
      "cumsum",   "cumprod",      "logcumsumexp",           "sort",
      "argsort",  "topk"};
  if (unit.slots() == 0) return false;
  if (within.contains(unit.name)) {
    const auto rank = static_cast<int>(unit.shape(0).size());
    const int dim = wrapped(unit.integer("dim", -1), unit.shape(0).size());
    for (int d = 0; d < rank; ++d)
      if (d != dim) add_cut(unit, d, rule);
    if (dim < rank && unit.name.starts_with("_log_softmax")) {
      const int passes = unit.name == "_log_softmax" ? 2 : 1;  // the largest number and the sum; the sum
      set_recipe(
          "softmax_of_parts",
          passes * 4 * numbers(unit.shape(0)) / std::max<std::int64_t>(unit.shape(0)[static_cast<std::size_t>(dim)], 1),
          rule);
      add_cut(unit, dim, rule);
    }
    return true;
  }
  return reducing.contains(unit.name) && unit.slots() == 1 && reduces(unit, rule);
}

}  // namespace stowage
