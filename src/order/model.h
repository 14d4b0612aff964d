// The ordering problems of one graph, made once for all searches and bounds.
//
//   plain      no in-place reuse                                its optimum bounds the plans without reuse
//   certain    the savings that every order has                 its peaks are reached or beaten by plans
//   relaxed    those that depend on the order, too              its optimum bounds every plan
//   small      `relaxed`, contracted: fewer ops, the same optimum
#pragma once

#include <vector>

#include "graph/analysed_graph.h"
#include "graph/ordered_graph.h"
#include "order/contract.h"
#include "order/problem.h"
#include "order/reuse_pairs.h"

namespace stowage {

struct OrderModel {
  // `graph` must outlive this.
  explicit OrderModel(const AnalysedGraph& graph);
  OrderModel(const OrderModel&) = delete;
  OrderModel& operator=(const OrderModel&) = delete;

  const AnalysedGraph& graph;
  OrderedGraph program;                 // program order, which every search is compared with
  std::int64_t program_peak_bytes = 0;  // without in-place reuse
  OrderProblem plain;
  std::vector<CandidatePair> pairs;
  OrderProblem certain;
  OrderProblem relaxed;
  Contracted small;
};

}  // namespace stowage
