#include "graph/dependencies.h"

#include <algorithm>

namespace stowage {
namespace {

// What the ops so far did to one buffer: its latest write or creation, and the reads since.
struct History {
  std::int32_t writer = -1;
  std::vector<std::int32_t> readers;
};

class Collector {
 public:
  Collector(const Graph& graph, bool again) : graph_(graph), again_(again), history_(graph.buffers.size()) {}

  Csr preds() {
    Csr result;
    result.start.reserve(graph_.ops.size() + 1);
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      row_.clear();
      visit(graph_.ops[i], static_cast<std::int32_t>(i));
      std::sort(row_.begin(), row_.end());
      row_.erase(std::unique(row_.begin(), row_.end()), row_.end());
      result.items.insert(result.items.end(), row_.begin(), row_.end());
      result.close_row();
    }
    return result;
  }

 private:
  void visit(const Op& op, std::int32_t id) {
    for (const BufferId b : op.reads) wait_for(history_[b].writer, id);
    for (const BufferId b : op.writes) {
      wait_for(history_[b].writer, id);
      if (again_ && !graph_.buffer(b).resident) continue;
      for (const std::int32_t reader : history_[b].readers) wait_for(reader, id);
    }
    if (op.rng) chain(last_rng_, id);
    if (op.effect) chain(last_effect_, id);
    for (const OpId earlier : op.after) wait_for(earlier.value, id);

    for (const BufferId b : op.reads) history_[b].readers.push_back(id);
    for (const auto* written : {&op.writes, &op.creates})
      for (const BufferId b : *written) history_[b] = {id, {}};
  }

  void wait_for(std::int32_t earlier, std::int32_t id) {
    if (earlier >= 0 && earlier != id) row_.push_back(earlier);
  }

  void chain(std::int32_t& last, std::int32_t id) {
    wait_for(last, id);
    last = id;
  }

  const Graph& graph_;
  bool again_;
  IdVector<BufferId, History> history_;
  std::int32_t last_rng_ = -1;
  std::int32_t last_effect_ = -1;
  std::vector<std::int32_t> row_;
};

Dependencies collect(const Graph& graph, bool again) {
  Dependencies result;
  result.preds = Collector(graph, again).preds();
  result.succs = transpose(result.preds, graph.ops.size());
  return result;
}

}  // namespace

Dependencies dependencies(const Graph& graph) { return collect(graph, false); }

Dependencies content_dependencies(const Graph& graph) { return collect(graph, true); }

}  // namespace stowage
