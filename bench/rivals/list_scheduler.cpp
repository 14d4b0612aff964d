#include "rivals/list_scheduler.h"

#include <algorithm>
#include <array>
#include <set>

#include "graph/analysed_graph.h"

namespace stowage::rivals {
namespace {

class Scheduler {
 public:
  Scheduler(const Graph& graph, const ListRule& rule)
      : graph_(graph),
        rule_(rule),
        analysed_(graph),
        dependencies_(analysed_.dependencies),
        uses_(analysed_.uses),
        peak_(rule.first_peak_bytes) {
    const std::size_t ops = graph.ops.size();
    for (std::size_t i = 0; i < ops; ++i) {
      waits_.push_back(static_cast<std::int32_t>(dependencies_.preds[i].size()));
      rise_.push_back(analysed_.added_bytes[OpId(i)]);
      growth_.push_back(created_to_stay(graph.ops[i]));
    }
    for (std::size_t b = 0; b < graph.buffers.size(); ++b) {
      users_left_.push_back(static_cast<std::int32_t>(uses_.users[b].size()));
      if (users_left_[b] == 1) promise(BufferId(b));
    }
    for (std::size_t i = 0; i < ops; ++i)
      if (waits_[i] == 0) insert(static_cast<std::int32_t>(i));
  }

  std::vector<OpId> run() {
    std::vector<OpId> order;
    while (!by_growth_.empty()) {
      const std::int32_t op = pick();
      order.emplace_back(op);
      perform(op);
    }
    return order;
  }

 private:
  using Key = std::array<std::int64_t, 4>;  // the last figure is the op

  Key growth_key(std::int32_t op) const { return {growth_[at(op)], rule_.rank[at(op)], 0, op}; }
  Key rise_key(std::int32_t op) const {
    return {rise_[at(op)], rule_.growth_breaks_ties ? growth_[at(op)] : 0, rule_.rank[at(op)], op};
  }
  static std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

  void insert(std::int32_t op) { by_growth_.insert(growth_key(op)), by_rise_.insert(rise_key(op)); }
  void erase(std::int32_t op) { by_growth_.erase(growth_key(op)), by_rise_.erase(rise_key(op)); }

  // Bytes of what the op creates and does not drop at once.
  std::int64_t created_to_stay(const Op& op) const {
    std::int64_t sum = 0;
    for (const BufferId b : op.creates)
      if (!uses_.users[b.index()].empty() || graph_.buffer(b).returned) sum += graph_.padded(graph_.buffer(b).bytes);
    return sum;
  }

  std::int32_t pick() const {
    for (const Key& key : by_growth_)
      if (live_ + rise_[at(static_cast<std::int32_t>(key[3]))] <= peak_) return static_cast<std::int32_t>(key[3]);
    return static_cast<std::int32_t>((*by_rise_.begin())[3]);
  }

  // One user of the buffer is left: running it frees the buffer.
  void promise(BufferId buffer) {
    if (graph_.buffer(buffer).returned) return;
    for (const std::int32_t user : uses_.users[buffer.index()]) {
      if (done(user)) continue;
      const bool ready = waits_[at(user)] == 0;
      if (ready) erase(user);
      growth_[at(user)] -= graph_.padded(graph_.buffer(buffer).bytes);
      if (ready) insert(user);
    }
  }

  bool done(std::int32_t op) const { return waits_[at(op)] < 0; }

  void perform(std::int32_t op) {
    erase(op);
    waits_[at(op)] = -1;
    peak_ = std::max(peak_, live_ + rise_[at(op)]);
    live_ += growth_[at(op)];
    std::vector<BufferId> touched = graph_.ops[at(op)].reads;
    const std::vector<BufferId>& writes = graph_.ops[at(op)].writes;
    touched.insert(touched.end(), writes.begin(), writes.end());
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const BufferId b : touched)
      if (!graph_.buffer(b).resident && --users_left_[b.index()] == 1) promise(b);
    for (const std::int32_t next : dependencies_.succs[at(op)])
      if (--waits_[at(next)] == 0) insert(next);
  }

  const Graph& graph_;
  const ListRule& rule_;
  AnalysedGraph analysed_;
  const Dependencies& dependencies_;
  const Uses& uses_;
  std::int64_t live_ = 0, peak_;
  std::vector<std::int32_t> waits_;  // per op: preds that have not run; -1: it has run itself
  std::vector<std::int64_t> rise_, growth_;
  std::vector<std::int32_t> users_left_;  // per buffer
  std::set<Key> by_growth_, by_rise_;     // the ready ops
};

}  // namespace

std::vector<OpId> list_schedule(const Graph& graph, const ListRule& rule) { return Scheduler(graph, rule).run(); }

}  // namespace stowage::rivals
