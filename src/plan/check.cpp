// The independent checker: its parts in the order in which the rules build on one another.
//
//   rule 0        the plan names the graph by its digest                       here
//   rule 1        which ops run, and in which order for the first time         here
//   rules 2 to 5  what each buffer holds at each step                          simulate.cpp
//   rule 6        who occupies which addresses when; also the peak             occupancy.cpp, overlap.cpp
//
// A part may assume what the parts before it have established (ids in range, say). Nothing here is shared with the
// planner.
#include "stowage/check.h"

#include <utility>
#include <vector>

#include "plan/occupancy.h"
#include "plan/overlap.h"
#include "plan/simulate.h"
#include "plan/violation.h"

namespace stowage {
namespace {

using checker::describe;
using checker::fail;

void check_identity(const Graph& graph, const Plan& plan) {
  if (plan.graph_sha256 != graph.sha256) {
    throw checker::Violation{
        0, concat("the plan is for another graph: it names sha256 ", quote(plan.graph_sha256.substr(0, 16)),
                  ", the graph has ", quote(graph.sha256.substr(0, 16)))};
  }
}

// Rule 1 in one pass: `last` first run of an rng op (and of an effect op) has the greatest id so far, or the order is
// broken.
class FirstRuns {
 public:
  explicit FirstRuns(const Graph& graph) : graph_(graph), ran_(graph.ops.size(), false) {}

  void run(std::size_t step, OpId id) {
    if (!checker::in_range(graph_, id)) {
      fail(1, "step ", step, " runs op ", id.value, ", which is out of range (", graph_.ops.size(), " ops)");
    }
    const Op& op = graph_.op(id);
    if (ran_[id]) {
      for (const auto& [trait, name] : {std::pair{op.effect, "effect"}, std::pair{op.once, "once"}})
        if (trait) fail(1, "step ", step, " runs ", describe(graph_, id), " again, which has the trait '", name, "'");
      return;
    }
    ran_[id] = true;
    if (op.rng) keep_order(step, id, last_rng_, "rng");
    if (op.effect) keep_order(step, id, last_effect_, "effect");
    for (const OpId earlier : op.after) {
      if (!ran_[earlier]) {
        fail(1, "step ", step, " runs ", describe(graph_, id), " before ", describe(graph_, earlier),
             ", which it comes after");
      }
    }
  }

  void finish() const {
    for (const OpId id : ran_.ids()) {
      if (!ran_[id]) fail(1, describe(graph_, id), " never runs");
    }
  }

 private:
  void keep_order(std::size_t step, OpId id, OpId& last, std::string_view trait) const {
    if (id < last) {
      fail(1, "step ", step, " runs ", describe(graph_, id), " after ", describe(graph_, last), ": ", trait,
           " ops keep their program order");
    }
    last = id;
  }

  const Graph& graph_;
  IdVector<OpId, bool> ran_;
  OpId last_rng_;
  OpId last_effect_;
};

void check_runs(const Graph& graph, const Plan& plan) {
  FirstRuns runs(graph);
  for (std::size_t step = 0; step < plan.steps.size(); ++step) {
    if (plan.steps[step].kind == Step::Kind::kRun) runs.run(step, plan.steps[step].op);
  }
  runs.finish();
}

}  // namespace

CheckReport check(const Graph& graph, const Plan& plan) {
  CheckReport report;
  try {
    check_identity(graph, plan);
    check_runs(graph, plan);
    checker::simulate(graph, plan);
    const std::vector<checker::Tenant> tenants = checker::list_tenants(graph, plan);
    report.peak_bytes = checker::check_overlap(graph, plan, tenants);
    report.valid = true;
  } catch (const checker::Violation& violation) {
    report.rule = violation.rule;
    report.message = violation.message;
  }
  return report;
}

}  // namespace stowage
