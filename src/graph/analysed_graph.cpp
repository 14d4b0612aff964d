#include "graph/analysed_graph.h"

#include <algorithm>

#include "graph/in_place_reuse.h"

namespace stowage {
namespace {

std::int64_t run_bytes_of(const AnalysedGraph& analysed, OpId id) {
  const Op& op = analysed.graph.op(id);
  std::vector<BufferId> touched;
  for (const auto* list : {&op.reads, &op.writes}) touched.insert(touched.end(), list->begin(), list->end());
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  std::int64_t held = 0;
  for (const BufferId b : touched)
    if (!analysed.graph.buffer(b).resident) held += analysed.bytes[b];
  return held + (op.takeover.empty() ? analysed.added_bytes[id] : least_added_bytes(analysed.graph, op, op.takeover));
}

}  // namespace

AnalysedGraph::AnalysedGraph(const Graph& of)
    : graph(of),
      dependencies(stowage::dependencies(of)),
      uses(stowage::uses(of)),
      bytes(of.buffers.size()),
      added_bytes(of.ops.size()),
      reuse(of.ops.size()),
      run_bytes(of.ops.size()),
      resident_bytes(stowage::resident_bytes(of)) {
  for (const BufferId b : bytes.ids()) {
    bytes[b] = graph.padded(graph.buffer(b).bytes);
    if (graph.buffer(b).returned) returned_bytes += bytes[b];
  }
  for (const OpId id : reuse.ids()) {
    const Op& op = graph.op(id);
    added_bytes[id] = stowage::added_bytes(graph, op);
    run_bytes[id] = run_bytes_of(*this, id);
    reuse[id] = useful_pairs(graph, op);
    reuses |= !reuse[id].empty();
  }
}

}  // namespace stowage
