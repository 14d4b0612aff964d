#include "order/model.h"

namespace stowage {

OrderModel::OrderModel(const AnalysedGraph& of)
    : graph(of),
      program(of, program_order(of.graph)),
      program_peak_bytes(peak_bytes(program, {})),
      plain(order_problem(of)),
      pairs(candidate_pairs(of)),
      certain(certain_problem(of, plain, pairs)),
      relaxed(relaxed_problem(of, plain, pairs)),
      small(contracted(relaxed)) {}

}  // namespace stowage
