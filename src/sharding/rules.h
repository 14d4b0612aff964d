// Rules: how an op may run on shards, stated for one axis of the mesh.
//
//   mm(a, b)       a    b    out       An axis takes one row, whatever the other axes take; n axes together take n rows. A row is
//                  R    R    R         right when the kernel, run on the local parts, leaves the local part of the result: numbers
//                  S0   R    S0        as on one device, up to the order of additions in a partial sum. Where a kernel's result
//                  R    S1   S1        would differ (a mean over uneven parts, statistics of a batch, random numbers), there is no
//                  S1   S0   Psum      row. The first row is always whole tensors.
//
// Rows after GSPMD (Xu et al. 2021) and DTensor's conventions; one file for each family.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sharding/unit.h"

namespace stowage {

// One axis's part of a placement, small: 0 whole, k + 1 a shard of dimension k, negative partial.
using AxisCode = std::int8_t;
inline constexpr AxisCode kWhole = 0, kPartSum = -1, kPartAvg = -2, kPartMax = -3;
inline constexpr AxisCode kUntouched = 127;  // an input of which only the shape is looked at: as it lives
constexpr AxisCode shard(int dim) { return static_cast<AxisCode>(dim + 1); }

// One for each slot or output; one that is not there is a Misfit.
class AxisCodes : public std::vector<AxisCode> {
 public:
  using std::vector<AxisCode>::vector;
  AxisCode& operator[](std::size_t i) { return i < size() ? data()[i] : throw Misfit(); }
  const AxisCode& operator[](std::size_t i) const { return i < size() ? data()[i] : throw Misfit(); }
};

struct AxisRow {
  AxisCodes in, out;  // per slot, per output
};

struct EvenDim {  // may only be cut into equal parts
  bool output = false;
  int index = 0;  // slot or output
  int dim = 0;
};

struct OpRule {
  std::vector<AxisRow> rows;  // the first: all whole
  std::vector<EvenDim> even;
  bool follows = false;  // one input, and each way to cut it has its row: the result lives as the input does
  bool linear = false;   // of those that follow: partial sums pass through
  bool random = false;
  bool no_empty = false;  // the kernel does not run on parts without a number
  std::string why;        // there is no rule, or only whole tensors are right
  std::string recipe;     // of rows from `recipe_from` on: the kernel alone would not leave the part of the result
  int recipe_from = 0;
  // That each axis that takes such a row adds up among its devices, and those that it gathers of each device; 0: nothing
  std::int64_t recipe_bytes = 0, recipe_gathered = 0;
};

// Whole tensors alone, with a reason, where no family knows the op, or where it is not shaped as its name promises.
OpRule rule_of(const UnitView& unit);

// The families: each says whether the op is one of its own, and adds rows to `rule`, which holds the first row.
bool pointwise_rule(const UnitView& unit, OpRule& rule);
bool view_rule(const UnitView& unit, OpRule& rule);
bool matmul_rule(const UnitView& unit, OpRule& rule);
bool reduction_rule(const UnitView& unit, OpRule& rule);
bool normalisation_rule(const UnitView& unit, OpRule& rule);
bool indexing_rule(const UnitView& unit, OpRule& rule);
bool attention_rule(const UnitView& unit, OpRule& rule);
bool convolution_rule(const UnitView& unit, OpRule& rule);
bool loss_rule(const UnitView& unit, OpRule& rule);
bool optimizer_rule(const UnitView& unit, OpRule& rule);
bool creation_rule(const UnitView& unit, OpRule& rule);

// For the families.
AxisRow whole_row(const UnitView& unit);
int wrapped(std::int64_t dim, std::size_t rank);  // -1 -> rank - 1; a Misfit outside [-rank, rank)
// Rows that cut dimension d of every slot and output that has more than `d` dimensions, for d in [0, dims).
void add_leading_rows(const UnitView& unit, int dims, OpRule& rule);
// From the next row on.
void set_recipe(const char* name, std::int64_t bytes, OpRule& rule);
// Rows that cut dimension d of all slots and outputs, d != skipped, where all have the same size there.
void add_common_rows(const UnitView& unit, int skipped, OpRule& rule);

}  // namespace stowage
