#include "solver/milp.h"

#include <algorithm>

namespace stowage {

int MilpProblem::add_column(double column_cost, double column_lower, double column_upper, bool is_integer) {
  cost.push_back(column_cost);
  lower.push_back(column_lower);
  upper.push_back(column_upper);
  integer.push_back(is_integer ? 1 : 0);
  return columns() - 1;
}

int MilpProblem::add_row(double least, double most, std::span<const Term> terms) {
  std::vector<Term> sorted(terms.begin(), terms.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const Term& a, const Term& b) { return a.column < b.column; });
  const auto begin = static_cast<std::size_t>(row_start.back());
  for (const Term& term : sorted) {
    if (entry_column.size() > begin && entry_column.back() == term.column) {
      entry_value.back() += term.coefficient;
    } else {
      entry_column.push_back(term.column);
      entry_value.push_back(term.coefficient);
    }
  }
  row_start.push_back(static_cast<int>(entry_column.size()));
  row_lower.push_back(least);
  row_upper.push_back(most);
  return rows() - 1;
}

}  // namespace stowage
