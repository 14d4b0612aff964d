#include "roam/leaves.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "order/must_live.h"
#include "roam/spans.h"

namespace stowage::roam {
namespace {

struct Range {
  std::int32_t from, to;
};
using Leaf = std::vector<Range>;  // one or two windows

std::vector<Leaf> divide(const std::vector<std::int32_t>& cuts, const std::vector<Shell>& shells,
                         const RoamOptions& options) {
  std::vector<Leaf> leaves;
  const auto add_segments = [&](std::int32_t from, std::int32_t to) {
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c)
      if (cuts[c] >= from && cuts[c + 1] <= to) leaves.push_back({{cuts[c], cuts[c + 1]}});
  };
  for (const Shell& shell : shells) {
    if (options.tree && shell.ops() <= options.node_limit) {
      Leaf leaf;
      if (shell.forward_from < shell.forward_to) leaf.push_back({shell.forward_from, shell.forward_to});
      if (shell.backward_from < shell.backward_to) leaf.push_back({shell.backward_from, shell.backward_to});
      leaves.push_back(std::move(leaf));
    } else {
      add_segments(shell.forward_from, shell.forward_to);
      add_segments(shell.backward_from, shell.backward_to);
    }
  }
  return leaves;
}

void append(const Csr& rows, std::vector<std::int64_t>& to) {
  to.push_back(static_cast<std::int64_t>(rows.rows()));
  to.insert(to.end(), rows.start.begin(), rows.start.end());
  to.insert(to.end(), rows.items.begin(), rows.items.end());
}

// Equal for leaves that are the same problem, up to the bytes that are live throughout.
std::vector<std::int64_t> signature(const std::vector<OrderProblem>& windows) {
  std::vector<std::int64_t> s;
  for (const OrderProblem& w : windows) {
    s.push_back(w.ops);
    s.push_back(w.base - windows[0].base);
    append(w.preds, s);
    append(w.openers, s);
    append(w.closers, s);
    s.insert(s.end(), w.weight.begin(), w.weight.end());
    s.insert(s.end(), w.extra.begin(), w.extra.end());
    s.insert(s.end(), w.open_at_start.begin(), w.open_at_start.end());
    s.insert(s.end(), w.open_at_end.begin(), w.open_at_end.end());
  }
  return s;
}

struct Answer {
  std::vector<Schedule> schedules;
  bool proven = false;
};

class LeafSolver {
 public:
  LeafSolver(const OrderProblem& problem, const LeafOptions& options, RoamStats& stats)
      : problem_(problem),
        options_(options),
        stats_(stats),
        streams_(options.options->multi_stream ? Streams::kMulti : Streams::kSingle) {
    result_.order.resize(problem.ops);
    result_.levels.resize(problem.ops);
    before_.assign(problem.ops, 0);
  }

  void solve(const Leaf& leaf) {
    std::vector<OrderProblem> windows;
    for (const Range range : leaf) windows.push_back(window(range));
    ++stats_.order_leaves;
    Answer answer = answer_for(windows);
    stats_.order_proven += answer.proven;
    for (std::size_t w = 0; w < leaf.size(); ++w) write(leaf[w], answer.schedules[w]);
  }

  Solved finish() {
    if (streams_ == Streams::kMulti) spread_levels();
    return std::move(result_);
  }

 private:
  [[nodiscard]] OrderProblem window(Range range) {
    std::vector<std::int32_t> members(range.to - range.from);
    std::iota(members.begin(), members.end(), range.from);
    std::fill(before_.begin(), before_.begin() + range.from, 1);
    std::fill(before_.begin() + range.from, before_.end(), 0);
    return restricted(problem_, members, before_);
  }

  // The start order; multi stream: the better of as early and as late as possible.
  [[nodiscard]] Schedule start(const OrderProblem& w) const {
    Schedule serial(w.ops);
    std::iota(serial.begin(), serial.end(), 0);
    if (streams_ == Streams::kSingle) return serial;
    Spans levels = spans(w, Streams::kMulti, 1.0);
    return schedule_peak(w, levels.asap) <= schedule_peak(w, levels.alap) ? levels.asap : levels.alap;
  }

  Answer answer_for(const std::vector<OrderProblem>& windows) {
    Answer answer;
    std::int64_t bound = 0, peak = 0;
    for (const OrderProblem& w : windows) {
      answer.schedules.push_back(start(w));
      peak = std::max(peak, schedule_peak(w, answer.schedules.back()));
      const std::vector<std::int64_t> steps = must_live(w);
      bound = std::max({bound, w.base, *std::max_element(steps.begin(), steps.end())});
    }
    answer.proven = peak <= bound;
    const bool stop = options_.should_stop && options_.should_stop();
    if (answer.proven || !options_.options->order_ilp || stop) return answer;
    const auto [known, is_new] = known_.try_emplace(signature(windows));
    if (is_new) known->second = by_ilp(windows, answer);
    return known->second;
  }

  Answer by_ilp(const std::vector<OrderProblem>& windows, const Answer& start) {
    ++stats_.order_ilps;
    IlpLimits limits;
    limits.nodes = options_.options->ilp_nodes;
    limits.iterations = options_.options->ilp_iterations;
    limits.should_stop = options_.should_stop;
    limits.library = options_.library;
    OrderIlpResult found = order_ilp(windows, start.schedules, streams_, limits);
    return {std::move(found.schedules), found.outcome == Outcome::kOptimal};
  }

  void write(Range range, const Schedule& schedule) {
    std::vector<std::int32_t> order(schedule.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return schedule[a] < schedule[b]; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      result_.order[range.from + i] = range.from + order[i];
      result_.levels[range.from + i] = schedule[i];
    }
    starts_.push_back(range);
  }

  // Levels count from 0 in each window: put one after the other.
  void spread_levels() {
    std::sort(starts_.begin(), starts_.end(), [](Range a, Range b) { return a.from < b.from; });
    std::int32_t offset = 0;
    for (const Range range : starts_) {
      std::int32_t last = -1;
      for (std::int32_t s = range.from; s < range.to; ++s) {
        last = std::max(last, result_.levels[s]);
        result_.levels[s] += offset;
      }
      offset += last + 1;
    }
  }

  const OrderProblem& problem_;
  const LeafOptions& options_;
  RoamStats& stats_;
  Streams streams_;
  Solved result_;
  std::vector<char> before_;
  std::vector<Range> starts_;
  std::map<std::vector<std::int64_t>, Answer> known_;
};

}  // namespace

Solved solve_leaves(const OrderProblem& problem, const std::vector<std::int32_t>& cuts,
                    const std::vector<Shell>& shells, const LeafOptions& options, RoamStats& stats) {
  LeafSolver solver(problem, options, stats);
  for (const Leaf& leaf : divide(cuts, shells, *options.options)) solver.solve(leaf);
  return solver.finish();
}

}  // namespace stowage::roam
