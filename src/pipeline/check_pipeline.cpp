// Checks a plan of a pipeline by replaying it, action by action, from the layers themselves. Shares no code with the
// planner.
//
// Checked: stages are contiguous, cover the layers in order and keep joined layers together; each rank runs the actions
// of its own stages, each once, and can run them to the end (no rank waits for ever); step_ns is what the replay takes;
// the ledger is what the replay holds, tied parameters once on a rank; no rank passes the limit; the bound is not above
// the step. Not checked: that the bound holds, and that the order is the one that its schedule's name says.
//
// O(actions * ranks * log actions).
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/concat.h"
#include "stowage/pipeline.h"

namespace stowage {
namespace {

struct Wrong {
  std::string message;
};

class Replay {
 public:
  Replay(const PipelineProblem& problem, const PipelinePlan& plan) : problem_(problem), plan_(plan) {}

  void run() {
    look_at_stages();
    find_holders();
    look_at_actions();
    replay();
    look_at_ledger();
  }

 private:
  using Key = std::tuple<char, std::int32_t, std::int32_t>;  // 'F' or 'B', stage, micro-batch

  template <class... Parts>
  [[noreturn]] static void wrong(const Parts&... parts) {
    throw Wrong{concat(parts...)};
  }

  void look_at_stages() const {
    std::int32_t next = 0;
    if (plan_.stages.empty()) wrong("the plan has no stages");
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const PipelineStage& stage = plan_.stages[s];
      if (stage.rank < 0 || stage.rank >= problem_.ranks) wrong("stage ", s, " is on rank ", stage.rank);
      if (stage.first != next) wrong("stage ", s, " begins at layer ", stage.first, ", not at ", next);
      if (stage.end <= stage.first || stage.end > std::ssize(problem_.layers)) wrong("stage ", s, " has no layers");
      if (stage.first > 0 && problem_.layers[static_cast<std::size_t>(stage.first)].joined)
        wrong("stage ", s, " begins at layer ", stage.first, ", which is joined with the one before");
      next = stage.end;
    }
    if (next != std::ssize(problem_.layers)) wrong("layers from ", next, " on are in no stage");
    if (std::ssize(plan_.actions) != problem_.ranks || std::ssize(plan_.ranks) != problem_.ranks)
      wrong("the plan is not one of ", problem_.ranks, " ranks");
  }

  void look_at_actions() const {
    std::map<std::tuple<std::int32_t, std::int32_t, char>, int> seen;
    for (std::size_t r = 0; r < plan_.actions.size(); ++r) {
      for (const PipelineAction& a : plan_.actions[r]) {
        if (a.stage < 0 || a.stage >= std::ssize(plan_.stages)) wrong("rank ", r, " runs stage ", a.stage);
        if (plan_.stages[static_cast<std::size_t>(a.stage)].rank != static_cast<std::int32_t>(r))
          wrong("rank ", r, " runs stage ", a.stage, ", which is on another");
        if (a.micro_batch < 0 || a.micro_batch >= problem_.micro_batches) wrong("micro-batch ", a.micro_batch);
        if (++seen[{a.stage, a.micro_batch, static_cast<char>(a.kind)}] > 1)
          wrong("stage ", a.stage, " runs an action of micro-batch ", a.micro_batch, " twice");
      }
    }
    for (std::int32_t s = 0; s < std::ssize(plan_.stages); ++s) {
      for (std::int32_t m = 0; m < problem_.micro_batches; ++m) {
        const bool f = seen.contains({s, m, 'F'}), b = seen.contains({s, m, 'B'});
        const bool i = seen.contains({s, m, 'I'}), w = seen.contains({s, m, 'W'});
        if (!f || !((b && !i && !w) || (!b && i && w)))
          wrong("stage ", s, " does not run micro-batch ", m, " forward and back");
      }
    }
  }

  [[nodiscard]] std::int64_t time_of(const PipelineAction& a) const {
    const PipelineStage& stage = plan_.stages[static_cast<std::size_t>(a.stage)];
    std::int64_t sum = problem_.action_ns;
    for (std::int32_t i = stage.first; i < stage.end; ++i) {
      const PipelineLayer& layer = problem_.layers[static_cast<std::size_t>(i)];
      switch (static_cast<char>(a.kind)) {
        case 'F': sum += layer.forward_ns; break;
        case 'B': sum += layer.backward_ns; break;
        case 'I': sum += a.stage == 0 ? 0 : layer.input_ns; break;
        default: sum += a.stage == 0 ? layer.backward_ns : layer.weight_ns; break;
      }
    }
    return sum;
  }

  // Of what passes between a stage and the next
  [[nodiscard]] std::int64_t bytes_after(std::int32_t stage) const {
    return problem_.layers[static_cast<std::size_t>(plan_.stages[static_cast<std::size_t>(stage)].end) - 1].sent_bytes;
  }
  [[nodiscard]] bool apart(std::int32_t stage) const {  // from the next
    const auto s = static_cast<std::size_t>(stage);
    return plan_.stages[s].rank != plan_.stages[s + 1].rank;
  }
  [[nodiscard]] std::int64_t arrival(std::int64_t made, std::int32_t stage) const {
    if (!apart(stage)) return made;
    return made + problem_.latency_ns +
           static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes_after(stage)) / problem_.gbps));
  }

  // When what the action reads is there; -1: not yet.
  [[nodiscard]] std::int64_t there(const PipelineAction& a) const {
    const auto of = [&](char what, std::int32_t stage) -> std::int64_t {
      const auto found = ended_.find({what, stage, a.micro_batch});
      return found == ended_.end() ? -1 : found->second;
    };
    const std::int64_t forward = of('F', a.stage);
    if (a.kind == PipelineAction::Kind::kForward) {
      if (a.stage == 0) return 0;
      const std::int64_t made = of('F', a.stage - 1);
      return made < 0 ? -1 : arrival(made, a.stage - 1);
    }
    if (a.kind == PipelineAction::Kind::kWeight) return of('B', a.stage);
    if (forward < 0 || a.stage == std::ssize(plan_.stages) - 1) return forward;
    const std::int64_t made = of('B', a.stage + 1);
    return made < 0 ? -1 : std::max(forward, arrival(made, a.stage));
  }

  void replay() {
    std::vector<std::size_t> next(plan_.actions.size());
    std::vector<std::int64_t> clock(plan_.actions.size());
    busy_.assign(plan_.actions.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < next.size(); ++r) {
        if (next[r] == plan_.actions[r].size()) continue;
        const PipelineAction& a = plan_.actions[r][next[r]];
        const std::int64_t ready = there(a);
        if (ready < 0) continue;
        clock[r] = std::max(clock[r], ready) + time_of(a);
        busy_[r] += time_of(a);
        if (a.kind != PipelineAction::Kind::kWeight)
          ended_[{a.kind == PipelineAction::Kind::kForward ? 'F' : 'B', a.stage, a.micro_batch}] = clock[r];
        ++next[r];
        moved = true;
      }
    }
    for (std::size_t r = 0; r < next.size(); ++r)
      if (next[r] < plan_.actions[r].size()) wrong("rank ", r, " waits for ever at its action ", next[r]);
    for (std::size_t t = 0; t < problem_.ties.size(); ++t) {
      const PipelineTie& tie = problem_.ties[t];
      const auto& holders = holders_[t];
      if (holders.size() < 2 || tie.gradient_bytes == 0) continue;
      std::int64_t together = 0;
      for (const auto& [r, _] : holders) together = std::max(together, clock[static_cast<std::size_t>(r)]);
      const auto n = static_cast<std::int64_t>(holders.size());
      const double sent = static_cast<double>(2 * (n - 1)) * static_cast<double>(tie.gradient_bytes);
      together += 2 * (n - 1) * problem_.latency_ns +
                  static_cast<std::int64_t>(std::ceil(sent / static_cast<double>(n) / problem_.gbps));
      for (const auto& [r, _] : holders) clock[static_cast<std::size_t>(r)] = together;
    }
    std::int64_t step = 0;
    for (std::size_t r = 0; r < next.size(); ++r) {
      for (const PipelineStage& stage : plan_.stages) {
        for (std::int32_t i = stage.first; stage.rank == static_cast<std::int32_t>(r) && i < stage.end; ++i) {
          clock[r] += problem_.layers[static_cast<std::size_t>(i)].update_ns;
          busy_[r] += problem_.layers[static_cast<std::size_t>(i)].update_ns;
        }
      }
      step = std::max(step, clock[r]);
    }
    if (step != plan_.step_ns) wrong("the step takes ", step, " ns, not ", plan_.step_ns);
    if (plan_.bound_ns > plan_.step_ns) wrong("the bound is above the step");
  }

  void find_holders() {
    std::vector<std::int32_t> rank_of(problem_.layers.size());
    for (const PipelineStage& stage : plan_.stages)
      for (std::int32_t i = stage.first; i < stage.end; ++i) rank_of[static_cast<std::size_t>(i)] = stage.rank;
    for (const PipelineTie& tie : problem_.ties) {
      auto& holders = holders_.emplace_back();
      for (const std::int32_t i : tie.layers) ++holders[rank_of.at(static_cast<std::size_t>(i))];
    }
  }

  void look_at_ledger() const {
    for (std::int32_t r = 0; r < problem_.ranks; ++r) {
      PipelineRank held;
      for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
        const PipelineStage& stage = plan_.stages[s];
        if (stage.rank != r) continue;
        for (std::int32_t i = stage.first; i < stage.end; ++i) {
          const PipelineLayer& layer = problem_.layers[static_cast<std::size_t>(i)];
          held.parameters += layer.parameter_bytes;
          held.gradients += layer.gradient_bytes;
          held.optimizer_state += layer.optimizer_bytes;
        }
        const auto index = static_cast<std::int32_t>(s);
        if (s > 0 && apart(index - 1)) held.buffers += problem_.micro_batches * bytes_after(index - 1);
        if (s + 1 < plan_.stages.size() && apart(index)) held.buffers += problem_.micro_batches * bytes_after(index);
      }
      for (std::size_t t = 0; t < problem_.ties.size(); ++t) {
        const PipelineTie& tie = problem_.ties[t];
        const auto here = holders_[t].find(r);
        if (here == holders_[t].end()) continue;
        held.parameters -= (here->second - 1) * tie.parameter_bytes;
        held.gradients -= (here->second - 1) * tie.gradient_bytes;
        held.optimizer_state -= (here->second - 1) * tie.optimizer_bytes;
      }
      held.saved = saved_of(r);
      const PipelineRank& told = plan_.ranks[static_cast<std::size_t>(r)];
      if (held.parameters != told.parameters || held.gradients != told.gradients ||
          held.optimizer_state != told.optimizer_state || held.buffers != told.buffers || held.saved != told.saved)
        wrong("rank ", r, " holds ", held.peak_bytes(), " bytes, not ", told.peak_bytes(), ", or of other kinds");
      const std::int64_t busy = busy_[static_cast<std::size_t>(r)];
      if (busy != told.busy_ns || plan_.step_ns - busy != told.idle_ns) wrong("rank ", r, " works ", busy, " ns");
      if (problem_.memory_limit_bytes && held.peak_bytes() > *problem_.memory_limit_bytes)
        wrong("rank ", r, " holds ", held.peak_bytes(), " bytes, more than the limit");
    }
  }

  [[nodiscard]] std::int64_t saved_of(std::int32_t rank) const {
    std::int64_t now = 0, most = 0;
    for (const PipelineAction& a : plan_.actions[static_cast<std::size_t>(rank)]) {
      std::int64_t bytes = 0;
      const PipelineStage& stage = plan_.stages[static_cast<std::size_t>(a.stage)];
      for (std::int32_t i = stage.first; i < stage.end; ++i)
        bytes += problem_.layers[static_cast<std::size_t>(i)].saved_bytes;
      if (a.kind == PipelineAction::Kind::kForward) now += bytes;
      most = std::max(most, now);
      if (a.kind == PipelineAction::Kind::kBackward || a.kind == PipelineAction::Kind::kWeight) now -= bytes;
    }
    return most;
  }

  const PipelineProblem& problem_;
  const PipelinePlan& plan_;
  std::map<Key, std::int64_t> ended_;
  std::vector<std::map<std::int32_t, std::int64_t>> holders_;  // by tie: the ranks that have layers of it, and how many
  std::vector<std::int64_t> busy_;
};

}  // namespace

PipelineReport check_pipeline(const PipelineProblem& problem, const PipelinePlan& plan) {
  try {
    Replay(problem, plan).run();
  } catch (const Wrong& wrong) {
    return {false, wrong.message};
  }
  return {true, ""};
}

}  // namespace stowage
