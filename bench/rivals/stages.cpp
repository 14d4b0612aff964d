#include "rivals/stages.h"

#include <algorithm>

#include "base/concat.h"
#include "graph/dependencies.h"
#include "stowage/error.h"

namespace stowage::rivals {
namespace {

void check_order(const Graph& graph, std::span<const OpId> order) {
  std::vector<std::int32_t> position(graph.ops.size(), -1);
  if (order.size() != graph.ops.size())
    throw Error(concat("an order of ", order.size(), " ops for a graph of ", graph.ops.size()));
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (!order[i].valid() || order[i].index() >= position.size() || position[order[i].index()] >= 0)
      throw Error(concat("the order has op ", order[i].value, " twice, or the graph has no such op"));
    position[order[i].index()] = static_cast<std::int32_t>(i);
  }
  const Dependencies deps = dependencies(graph);
  for (std::size_t k = 0; k < position.size(); ++k)
    for (const std::int32_t pred : deps.preds[k])
      if (position[pred] > position[k])
        throw Error(concat("the order runs op ", k, " before op ", pred, ", which it depends on"));
}

bool contains(const std::vector<BufferId>& list, BufferId id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

class Reader {
 public:
  explicit Reader(Stages& stages) : s_(stages), readers_(stages.graph->buffers.size()) {}

  // The stage after which a resident that position i reads has changed, or its own when it may not run twice.
  std::vector<std::int32_t> run() {
    limit_.assign(s_.order.size(), s_.size() - 1);
    for (std::int32_t i = 0; i < s_.size(); ++i) read(i, s_.graph->op(s_.order[i]));
    return limit_;
  }

 private:
  void read(std::int32_t i, const Op& op) {
    if (op.effect || op.once) limit_[i] = i;
    for (const BufferId b : op.reads) {
      if (contains(op.writes, b)) continue;
      if (s_.graph->buffer(b).resident)
        readers_[b.index()].push_back(i);
      else
        use(i, b);
    }
    for (const BufferId b : op.writes) {
      if (s_.graph->buffer(b).resident) {
        write_resident(i, b);
      } else {
        s_.contents[use(i, b)].overwriter = i;
        make(i, b);
      }
    }
    for (const BufferId b : op.creates) make(i, b);
  }

  std::int32_t use(std::int32_t i, BufferId b) {
    const std::int32_t content = s_.of_buffer[b.index()].back();
    s_.contents[content].users.push_back(i);
    s_.needs[i].push_back(content);
    return content;
  }

  void make(std::int32_t i, BufferId b) {
    const auto content = static_cast<std::int32_t>(s_.contents.size());
    s_.contents.push_back({b.value, i, -1, {}, i});
    s_.of_buffer[b.index()].push_back(content);
    s_.makes[i].push_back(content);
  }

  // Readers may run again up to the stage in which this writes: repeats come before the stage's own op.
  void write_resident(std::int32_t i, BufferId b) {
    limit_[i] = i;
    for (const std::int32_t reader : readers_[b.index()]) limit_[reader] = std::min(limit_[reader], i);
    readers_[b.index()].clear();
  }

  Stages& s_;
  std::vector<std::vector<std::int32_t>> readers_;  // of each resident, since its latest write
  std::vector<std::int32_t> limit_;
};

}  // namespace

Stages::Stages(const Graph& g, std::span<const OpId> given)
    : graph(&g),
      order(given.begin(), given.end()),
      needs(g.ops.size()),
      makes(g.ops.size()),
      of_buffer(g.buffers.size()) {
  check_order(g, given);
  last_stage = Reader(*this).run();
  for (std::int32_t i = size() - 1; i >= 0; --i) {
    std::int32_t wanted = i;
    for (const std::int32_t c : makes[i]) {
      Content& content = contents[c];
      for (const std::int32_t user : content.users) content.last_stage = std::max(content.last_stage, last_stage[user]);
      if (content.overwriter < 0 && g.buffers[content.buffer].returned) content.last_stage = size();
      wanted = std::max(wanted, std::min(content.last_stage, size() - 1));
    }
    last_stage[i] = std::min(last_stage[i], wanted);
  }
}

}  // namespace stowage::rivals
