#include "rivals/checkmate_milp.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "graph/in_place_reuse.h"
#include "graph/liveness.h"
#include "rivals/evaluate_runs.h"
#include "rivals/stages.h"
#include "solver/highs_library.h"
#include "solver/milp.h"

namespace stowage::rivals {
namespace {

// Of the limit and of the largest cost in the program, so that tolerances mean the same in all graphs
constexpr double kScale = 1000;
constexpr int kNone = -1;

class Program {
 public:
  Program(const Stages& stages, std::int64_t capacity)
      : s_(stages),
        n_(stages.size()),
        limit_(static_cast<double>(capacity)),
        byte_unit_(std::max(1.0, limit_ / kScale)),
        run_(stages.order.size()),
        kept_(stages.contents.size()) {
    for (const Op& op : s_.graph->ops) cost_unit_ = std::max(cost_unit_, static_cast<double>(op.cost_ns) / kScale);
  }

  // False when it has grown beyond `entries`.
  bool build(std::int64_t entries) {
    add_columns();
    for (std::int32_t t = 0; t < n_; ++t) {
      if (static_cast<std::int64_t>(milp_.entries()) > entries) return false;
      add_needs(t);
      add_keeping(t);
      add_bytes(t);
    }
    return true;
  }

  [[nodiscard]] const MilpProblem& milp() const { return milp_; }
  [[nodiscard]] double cost_unit() const { return cost_unit_; }

  [[nodiscard]] std::vector<OpId> runs(const std::vector<double>& values) const {
    std::vector<OpId> result;
    for (std::int32_t t = 0; t < n_; ++t)
      for (std::int32_t i = 0; i <= t; ++i)
        if (const int r = run(t, i); r != kNone && values[r] > 0.5) result.push_back(s_.order[i]);
    return result;
  }

  // R and S of `runs`, which hold each content from its making to its last use; the solver finds the rest. Empty when a
  // stage runs ops out of order, or to no use.
  [[nodiscard]] std::vector<double> start(const std::vector<OpId>& runs) const {
    std::vector<std::int32_t> position(s_.order.size()), since(s_.contents.size(), n_);
    for (std::int32_t i = 0; i < n_; ++i) position[s_.order[i].index()] = i;
    std::vector<double> values(milp_.cost.size(), 0);
    const auto keep = [&](std::int32_t c, std::int32_t to) {
      for (std::int32_t t = since[c] + 1; t <= to; ++t)
        if (kept(t, c) != kNone) values[kept(t, c)] = 1;
    };
    std::int32_t t = 0, latest = kNone;
    for (const OpId op : runs) {
      const std::int32_t i = position[op.index()];
      if (i <= latest || i > t || run(t, i) == kNone) return {};
      values[run(t, i)] = 1;
      for (const std::int32_t c : s_.needs[i]) keep(c, t);
      for (const std::int32_t c : s_.makes[i]) since[c] = t;
      latest = i == t ? kNone : i;
      t += i == t ? 1 : 0;
    }
    for (std::int32_t c = 0; c < static_cast<std::int32_t>(s_.contents.size()); ++c)
      if (kept(n_, c) != kNone) keep(c, n_);
    return values;
  }

 private:
  // Columns of R and S; kNone where there is none.
  [[nodiscard]] int run(std::int32_t t, std::int32_t i) const {
    return t >= i && t <= s_.last_stage[i] ? run_[i] + (t - i) : kNone;
  }
  [[nodiscard]] int kept(std::int32_t t, std::int32_t c) const {
    const Content& content = s_.contents[c];
    return t > content.maker && t <= content.last_stage ? kept_[c] + (t - content.maker - 1) : kNone;
  }
  void add_term(std::vector<Term>& row, int column, double coefficient) const {
    if (column != kNone) row.push_back({column, coefficient});
  }
  [[nodiscard]] double padded(std::int32_t buffer) const {
    return static_cast<double>(s_.graph->padded(s_.graph->buffers[buffer].bytes)) / byte_unit_;
  }

  void add_columns() {
    for (std::int32_t i = 0; i < n_; ++i) {
      const double cost = static_cast<double>(s_.graph->op(s_.order[i]).cost_ns) / cost_unit_;
      run_[i] = milp_.columns();
      milp_.add_column(cost, 1, 1, true);
      for (std::int32_t t = i + 1; t <= s_.last_stage[i]; ++t) milp_.add_binary(cost);
    }
    for (std::size_t c = 0; c < s_.contents.size(); ++c) {
      const Content& content = s_.contents[c];
      kept_[c] = milp_.columns();
      for (std::int32_t t = content.maker + 1; t <= content.last_stage; ++t)
        milp_.add_column(0, t == n_ ? 1 : 0, t == content.overwriter + 1 ? 0 : 1, true);
    }
  }

  void add_needs(std::int32_t t) {
    for (std::int32_t i = 0; i <= t; ++i) {
      if (run(t, i) == kNone) continue;
      for (const std::int32_t c : s_.needs[i]) {
        std::vector<Term> row{{run(t, i), -1}};
        add_term(row, kept(t, c), 1);
        add_term(row, run(t, s_.contents[c].maker), 1);
        milp_.add_row(0, kInfinity, row);
      }
    }
  }

  void add_keeping(std::int32_t t) {
    for (std::int32_t c = 0; c < static_cast<std::int32_t>(s_.contents.size()); ++c) {
      const Content& content = s_.contents[c];
      const int next = kept(t + 1, c);
      if (next == kNone) continue;
      std::vector<Term> row{{next, -1}};
      add_term(row, kept(t, c), 1);
      add_term(row, run(t, content.maker), 1);
      milp_.add_row(0, kInfinity, row);
      if (content.overwriter >= 0 && run(t, content.overwriter) != kNone)
        milp_.add_row(-kInfinity, 1, {{next, 1}, {run(t, content.overwriter), 1}});
    }
    // One content of a buffer at a time; and what is about to be created again need not have been kept, as its users
    // come later.
    for (const std::vector<std::int32_t>& contents : s_.of_buffer) {
      std::vector<Term> row = there_at(t, contents, 1);
      if (!contents.empty()) add_term(row, run(t, s_.contents[contents[0]].maker), 1);
      if (row.size() > 1) milp_.add_row(-kInfinity, 1, row);
    }
  }

  [[nodiscard]] std::vector<Term> there_at(std::int32_t t, const std::vector<std::int32_t>& contents,
                                           double coefficient) const {
    std::vector<Term> row;
    for (const std::int32_t c : contents) add_term(row, kept(t, c), coefficient);
    return row;
  }

  // What a buffer of `contents` takes from its creation on in stage t: for each later user that may run in it, in
  // order, the column that says whether it or a later one runs, or the next stage begins with the buffer. After the
  // last user: there_at(t + 1).
  struct Use {
    std::int32_t at;
    int column;
  };
  std::vector<Use> uses_in(std::int32_t t, const std::vector<std::int32_t>& contents) {
    std::vector<Use> uses;
    for (const std::int32_t c : contents)
      for (const std::int32_t user : s_.contents[c].users)
        if (run(t, user) != kNone && (uses.empty() || uses.back().at != user)) uses.push_back({user, kNone});
    const std::vector<Term> next = there_at(t + 1, contents, -1);
    int later = kNone;
    for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
      const int here = run(t, use->at);
      if (use->at == t || (later == kNone && next.empty())) {
        later = here;  // the stage's own op runs for certain
      } else if (later == kNone || later != run(t, t)) {
        const int column = milp_.add_column(0, 0, 1, false);
        milp_.add_row(0, kInfinity, {{column, 1}, {here, -1}});
        std::vector<Term> row = later == kNone ? next : std::vector<Term>{{later, -1}};
        row.push_back({column, 1});
        milp_.add_row(0, kInfinity, row);
        later = column;
      }
      use->column = later;
    }
    return uses;
  }

  // The bytes of the buffer at each of the stage's ops, as changes from the op before.
  void add_buffer(std::int32_t t, const std::vector<std::int32_t>& contents, const std::vector<std::int32_t>& ops,
                  std::vector<std::vector<Term>>& changes) {
    const std::int32_t creator = s_.contents[contents[0]].maker;
    const double bytes = padded(s_.contents[contents[0]].buffer);
    if (creator >= t || bytes == 0) return;
    const std::vector<Use> uses = uses_in(t, contents);
    const std::vector<Term> before = there_at(t, contents, bytes), after = there_at(t + 1, contents, bytes);
    std::size_t next = 0;
    std::vector<Term> now;
    for (std::size_t k = 0; k < ops.size(); ++k) {
      while (next < uses.size() && uses[next].at < ops[k]) ++next;
      std::vector<Term> then;
      if (ops[k] < creator)
        then = before;
      else if (ops[k] > creator && next < uses.size())
        then = {{uses[next].column, bytes}};
      else if (ops[k] > creator)
        then = after;
      const auto same = [](const Term& a, const Term& b) { return a.column == b.column; };
      if (std::equal(now.begin(), now.end(), then.begin(), then.end(), same)) continue;
      for (const Term& term : now) changes[k].push_back({term.column, -term.coefficient});
      changes[k].insert(changes[k].end(), then.begin(), then.end());
      now = std::move(then);
    }
  }

  void add_bytes(std::int32_t t) {
    std::vector<std::int32_t> ops;
    for (std::int32_t i = 0; i <= t; ++i)
      if (run(t, i) != kNone) ops.push_back(i);
    std::vector<std::vector<Term>> changes(ops.size());
    for (const std::vector<std::int32_t>& contents : s_.of_buffer)
      if (!contents.empty()) add_buffer(t, contents, ops, changes);
    int live = kNone;  // before the op and while it runs, without what the op adds
    for (std::size_t k = 0; k < ops.size(); ++k) {
      add_term(changes[k], live, 1);
      live = milp_.add_column(0, 0, limit_ / byte_unit_, false);
      changes[k].push_back({live, -1});
      milp_.add_row(0, 0, changes[k]);
      const double added = static_cast<double>(added_bytes(*s_.graph, s_.graph->op(s_.order[ops[k]]))) / byte_unit_;
      if (added > 0) milp_.add_row(-kInfinity, limit_ / byte_unit_, {{live, 1}, {run(t, ops[k]), added}});
    }
  }

  const Stages& s_;
  std::int32_t n_;
  double limit_, byte_unit_, cost_unit_ = 1;
  MilpProblem milp_;
  std::vector<int> run_, kept_;  // per position, per content: its first column
};

MilpOptions milp_options(const CheckmateOptions& options) {
  MilpOptions result;
  result.node_limit = options.nodes;
  result.iteration_limit = options.iterations;
  result.time_limit_seconds = options.seconds;
  result.relative_gap = options.relative_gap;
  result.library = options.library;
  return result;
}

// Costs are whole numbers: a bound is rounded up, but for the solver's tolerance.
std::int64_t bound_ns(const Graph& graph, double bound) {
  std::int64_t program = 0;
  for (const Op& op : graph.ops) program += op.cost_ns;
  return std::isfinite(bound) ? std::max(program, static_cast<std::int64_t>(std::ceil(bound * (1 - 1e-9) - 1e-3)))
                              : program;
}

}  // namespace

CheckmateResult checkmate_milp(const Graph& graph, const CheckmateOptions& options) {
  load_highs(options.library);
  const auto start = std::chrono::steady_clock::now();
  const Stages stages(graph, options.order.empty() ? program_order(graph) : options.order);
  const std::int64_t capacity = options.budget_bytes - resident_bytes(graph);
  CheckmateResult result;
  result.bound_ns = bound_ns(graph, -kInfinity);
  Program program(stages, std::max<std::int64_t>(0, capacity));
  if (capacity < 0) {
    result.outcome = Outcome::kInfeasible;
  } else if (program.build(options.entries)) {
    MilpOptions limits = milp_options(options);
    if (!options.start.empty()) limits.start = program.start(options.start);
    const MilpResult solved = solve(program.milp(), limits);
    result.outcome = solved.outcome;
    result.bound_ns = bound_ns(graph, solved.bound * program.cost_unit());
    result.nodes = solved.nodes;
    if (!solved.values.empty()) {
      result.runs = program.runs(solved.values);
      const Evaluation checked = evaluate_runs(graph, result.runs);
      result.peak_bytes = checked.peak_bytes;
      result.arena_bytes = checked.arena_bytes;
      for (const OpId op : result.runs) result.step_ns += graph.op(op).cost_ns;
      // Beyond the limit by a tolerance
      if (result.peak_bytes > capacity) result.outcome = Outcome::kUnknown, result.runs.clear();
    }
  }
  result.columns = program.milp().columns();
  result.rows = program.milp().rows();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace stowage::rivals
