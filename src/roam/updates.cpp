#include "roam/updates.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace stowage::roam {
namespace {

bool is_state(const Buffer& buffer) {
  return buffer.resident && (buffer.kind == BufferKind::kParameter || buffer.kind == BufferKind::kOptimizerState);
}

// Finds the ops that only serve updates.
class UpdateOps {
 public:
  explicit UpdateOps(const AnalysedGraph& graph)
      : graph_(graph.graph), deps_(graph.dependencies), creator_(graph.uses.creator), serves_(graph_.ops.size(), 0) {
    for (std::size_t i = graph_.ops.size(); i-- > 0;) serves_[i] = starts_out(i);
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) serves_[i] = serves_[i] && reads_only_gradients(graph_.ops[i]);
    for (std::size_t i = graph_.ops.size(); i-- > 0;)  // what lost a follower is no branch that dangles
      serves_[i] = serves_[i] && followers_serve(i);
  }

  [[nodiscard]] const std::vector<char>& result() const { return serves_; }

 private:
  [[nodiscard]] bool followers_serve(std::size_t i) const {
    return std::ranges::all_of(deps_.succs[i], [&](std::int32_t s) { return serves_[s] != 0; });
  }

  // Writes state, or makes something for ops that do; what makes a gradient belongs to the backward pass.
  [[nodiscard]] bool starts_out(std::size_t i) const {
    const Op& op = graph_.ops[i];
    if (op.effect || !followers_serve(i)) return false;
    for (const BufferId b : op.creates)
      if (graph_.buffer(b).kind == BufferKind::kGradient || graph_.buffer(b).returned) return false;
    const bool writes_state = std::ranges::any_of(op.writes, [&](BufferId b) { return is_state(graph_.buffer(b)); });
    return writes_state || !deps_.succs[i].empty();
  }

  [[nodiscard]] bool reads_only_gradients(const Op& op) const {
    for (const auto* list : {&op.reads, &op.writes})
      for (const BufferId b : *list) {
        const Buffer& buffer = graph_.buffer(b);
        const bool fine = buffer.resident || buffer.kind == BufferKind::kGradient || serves_[creator_[b]];
        if (!fine) return false;
      }
    return true;
  }

  const Graph& graph_;
  const Dependencies& deps_;
  const IdVector<BufferId, std::int32_t>& creator_;
  std::vector<char> serves_;
};

class Groups {  // union-find
 public:
  explicit Groups(std::size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0); }
  std::int32_t find(std::int32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::int32_t a, std::int32_t b) { parent_[std::max(find(a), find(b))] = std::min(find(a), find(b)); }

 private:
  std::vector<std::int32_t> parent_;
};

class Scheduler {
 public:
  Scheduler(const AnalysedGraph& graph, const RoamOptions& options)
      : analysed_(graph),
        graph_(graph.graph),
        deps_(graph.dependencies),
        creator_(graph.uses.creator),
        options_(options) {}

  UpdatePlan run() {
    divide();
    make_profile();
    peak_ = live_.empty() ? 0 : *std::max_element(live_.begin(), live_.end());
    std::vector<std::int32_t> by_ready(plan_.branches.size());
    std::iota(by_ready.begin(), by_ready.end(), 0);
    std::stable_sort(by_ready.begin(), by_ready.end(),
                     [&](std::int32_t a, std::int32_t b) { return plan_.branches[a].ready < plan_.branches[b].ready; });
    std::vector<std::int32_t> waiting;
    for (const std::int32_t b : by_ready) {
      plan_.branches[b].at = plan_.branches[b].ready;
      if (!has_to_wait(plan_.branches[b])) continue;
      peak_ = std::max(peak_, needs(plan_.branches[b], plan_.branches[b].ready).inside);
      waiting.push_back(b);
    }
    // Against the final peak: some of them need not wait
    for (const std::int32_t b : waiting) delay(plan_.branches[b]);
    return std::move(plan_);
  }

 private:
  void divide() {
    const std::vector<char> serves = UpdateOps(analysed_).result();
    const std::size_t n = graph_.ops.size();
    std::vector<char> constant(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      constant[i] = serves[i] && std::ranges::all_of(deps_.preds[i], [&](std::int32_t p) { return constant[p] != 0; });
      if (constant[i]) plan_.constants.push_back(static_cast<std::int32_t>(i));
    }
    const std::vector<std::int32_t> branch = group(serves, constant);
    position_.assign(n, -1);
    for (std::size_t i = 0; i < n; ++i) {
      if (serves[i] || branch[i] >= 0) continue;
      position_[i] = static_cast<std::int32_t>(plan_.base.size());
      plan_.base.push_back(static_cast<std::int32_t>(i));
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (branch[i] < 0) continue;
      UpdateBranch& b = plan_.branches[branch[i]];
      b.ops.push_back(static_cast<std::int32_t>(i));
      for (const std::int32_t p : deps_.preds[i]) b.ready = std::max(b.ready, position_[p]);
    }
  }

  // Per op its branch, or -1. An op whose gradient serves one branch and nothing else belongs to that branch.
  std::vector<std::int32_t> group(const std::vector<char>& serves, const std::vector<char>& constant) {
    const std::size_t n = graph_.ops.size();
    Groups groups(n);
    const auto grouped = [&](std::size_t i) { return serves[i] && !constant[i]; };
    for (std::size_t i = 0; i < n; ++i)
      for (const std::int32_t p : deps_.preds[i])
        if (grouped(i) && grouped(static_cast<std::size_t>(p))) groups.join(static_cast<std::int32_t>(i), p);
    std::vector<std::int32_t> branch(n, -1), of_root(n, -1);
    for (std::size_t i = 0; i < n; ++i) {
      if (!grouped(i)) continue;
      std::int32_t& index = of_root[groups.find(static_cast<std::int32_t>(i))];
      if (index < 0) {
        index = static_cast<std::int32_t>(plan_.branches.size());
        plan_.branches.emplace_back();
      }
      branch[i] = index;
    }
    for (std::size_t i = 0; i < n; ++i)
      if (!serves[i] && !deps_.preds[i].empty()) branch[i] = common_branch(i, branch);
    return branch;
  }

  [[nodiscard]] std::int32_t common_branch(std::size_t op, const std::vector<std::int32_t>& branch) const {
    const auto succs = deps_.succs[op];
    const Op& what = graph_.ops[op];
    const bool fixed =
        succs.empty() || what.rng || what.effect || !what.writes.empty() || what.creates.empty() ||
        std::ranges::any_of(what.creates, [&](BufferId b) { return graph_.buffer(b).kind != BufferKind::kGradient; });
    if (fixed) return -1;
    const std::int32_t first = branch[succs[0]];
    return std::ranges::all_of(succs, [&](std::int32_t s) { return branch[s] == first; }) ? first : -1;
  }

  // Live bytes at each step of the base alone, and where the base uses each buffer for the last time.
  void make_profile() {
    const std::size_t n = plan_.base.size();
    last_ = IdVector<BufferId, std::int32_t>(graph_.buffers.size(), -1);
    for (std::size_t p = 0; p < n; ++p) {
      const Op& op = graph_.ops[plan_.base[p]];
      for (const auto* list : {&op.reads, &op.writes, &op.creates})
        for (const BufferId b : *list) last_[b] = static_cast<std::int32_t>(p);
    }
    for (const BufferId b : last_.ids())
      if (graph_.buffer(b).returned) last_[b] = static_cast<std::int32_t>(n) - 1;
    live_.assign(n + 1, 0);
    for (std::size_t p = 0; p < n; ++p) {
      const Op& op = graph_.ops[plan_.base[p]];
      const std::int64_t added = analysed_.added_bytes[OpId(plan_.base[p])];
      live_[p] += added;
      live_[p + 1] -= added;
      for (const BufferId b : op.creates) {
        live_[p + 1] += graph_.padded(graph_.buffer(b).bytes);
        live_[static_cast<std::size_t>(last_[b]) + 1] -= graph_.padded(graph_.buffer(b).bytes);
      }
    }
    std::partial_sum(live_.begin(), live_.end(), live_.begin());
    live_.pop_back();
  }

  // What a branch that runs after `position` takes there beyond the base: `held` before it begins (what only it still
  // needs), `inside` at its fullest op, in program order.
  struct Needs {
    std::int64_t held = 0;
    std::int64_t inside = 0;
  };
  [[nodiscard]] Needs needs(const UpdateBranch& branch, std::int32_t position) const {
    std::vector<std::pair<BufferId, std::size_t>> touched;  // (buffer, place in the branch)
    for (std::size_t k = 0; k < branch.ops.size(); ++k) {
      const Op& op = graph_.ops[branch.ops[k]];
      for (const auto* list : {&op.reads, &op.writes, &op.creates})
        for (const BufferId b : *list)
          if (!graph_.buffer(b).resident && last_[b] <= position) touched.emplace_back(b, k);
    }
    std::sort(touched.begin(), touched.end());
    std::vector<std::int64_t> freed(branch.ops.size(), 0);
    Needs result;
    for (std::size_t i = 0; i < touched.size(); ++i) {
      if (i + 1 < touched.size() && touched[i + 1].first == touched[i].first) continue;
      const std::int64_t bytes = graph_.padded(graph_.buffer(touched[i].first).bytes);
      freed[touched[i].second] += bytes;
      if (last_[touched[i].first] >= 0) result.held += bytes;  // made by the base
    }
    std::int64_t now = result.held;
    for (std::size_t k = 0; k < branch.ops.size(); ++k) {
      const Op& op = graph_.ops[branch.ops[k]];
      result.inside = std::max(result.inside, now + analysed_.added_bytes[OpId(branch.ops[k])]);
      for (const BufferId b : op.creates) now += graph_.padded(graph_.buffer(b).bytes);
      now -= freed[k];
    }
    return result;
  }

  // Bytes that the base leaves live after the op at `position`.
  [[nodiscard]] std::int64_t after(std::int32_t position) const {
    if (position < 0 || position + 1 >= std::ssize(live_)) return 0;
    return live_[position + 1] - analysed_.added_bytes[OpId(plan_.base[position + 1])];
  }

  [[nodiscard]] bool has_to_wait(const UpdateBranch& branch) const {
    return branch.ready >= 0 && !too_small(branch) && after(branch.ready) + needs(branch, branch.ready).inside >= peak_;
  }

  // Gradients against the inputs of the ops that make them. A small gradient frees more than it takes: it never waits.
  [[nodiscard]] bool too_small(const UpdateBranch& branch) const {
    std::vector<std::int32_t> makers;
    for (const std::int32_t op : branch.ops)
      for (const BufferId b : graph_.ops[op].reads)
        if (graph_.buffer(b).kind == BufferKind::kGradient && creator_[b] >= 0) makers.push_back(creator_[b]);
    std::sort(makers.begin(), makers.end());
    makers.erase(std::unique(makers.begin(), makers.end()), makers.end());
    std::int64_t inputs = 0, gradients = 0;
    for (const std::int32_t op : makers) {
      for (const BufferId b : graph_.ops[op].reads) inputs += graph_.buffer(b).bytes;
      for (const BufferId b : graph_.ops[op].creates)
        if (graph_.buffer(b).kind == BufferKind::kGradient) gradients += graph_.buffer(b).bytes;
    }
    return static_cast<double>(gradients) < options_.update_ratio * static_cast<double>(inputs);
  }

  // At the first place where it fits, else where the fullest step that it causes is least full.
  void delay(UpdateBranch& branch) {
    const auto n = static_cast<std::int32_t>(plan_.base.size());
    const auto radius = static_cast<std::int32_t>(options_.delay_radius * n);
    const std::int32_t latest = std::min(n - 1, branch.ready + std::max(radius, 0));
    std::vector<std::int64_t> held;  // through the step after ready, ready + 1, ...
    std::int64_t least = std::numeric_limits<std::int64_t>::max(), waited = 0;
    for (std::int32_t p = branch.ready; p <= latest && waited < least; ++p) {
      const Needs need = needs(branch, p);
      const std::int64_t fullest = std::max(waited, after(p) + need.inside);
      if (fullest < least) {
        least = fullest;
        branch.at = p;
      }
      if (fullest < peak_) break;
      held.push_back(need.held);
      if (p + 1 < n) waited = std::max(waited, live_[p + 1] + need.held);
    }
    for (std::int32_t p = branch.ready + 1; p <= branch.at; ++p) live_[p] += held[p - branch.ready - 1];
  }

  const AnalysedGraph& analysed_;
  const Graph& graph_;
  const Dependencies& deps_;
  const IdVector<BufferId, std::int32_t>& creator_;
  const RoamOptions& options_;
  UpdatePlan plan_;
  std::vector<std::int32_t> position_;  // per op: in the base, or -1
  IdVector<BufferId, std::int32_t>
      last_;                        // per buffer: base position of its last use, -1 when the base does not touch it
  std::vector<std::int64_t> live_;  // per base position
  std::int64_t peak_ = 0;
};

}  // namespace

UpdatePlan schedule_updates(const AnalysedGraph& graph, const RoamOptions& options) {
  return Scheduler(graph, options).run();
}

}  // namespace stowage::roam
