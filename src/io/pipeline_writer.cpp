// Writes the plan of a pipeline. Actions are texts such as "2F0": stage 2, forward, micro-batch 0.
#include "stowage/io.h"
#include "stowage/json.h"

namespace stowage {
namespace {

template <class List, class Each>
void append_list(io::ObjectWriter& object, std::string& out, std::string_view name, const List& list, Each each) {
  object.key(name);
  out += '[';
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ',';
    each(list[i]);
  }
  out += ']';
}

void append_actions(std::string& out, const std::vector<PipelineAction>& actions) {
  out += '[';
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (i > 0) out += ',';
    out += '"';
    io::append_int(out, actions[i].stage);
    out += static_cast<char>(actions[i].kind);
    io::append_int(out, actions[i].micro_batch);
    out += '"';
  }
  out += ']';
}

void append_rank(std::string& out, const PipelineRank& rank) {
  io::ObjectWriter object(out);
  object.field("parameters", rank.parameters);
  object.field("gradients", rank.gradients);
  object.field("optimizer_state", rank.optimizer_state);
  object.field("buffers", rank.buffers);
  object.field("saved", rank.saved);
  object.field("peak", rank.peak_bytes());
  object.field("busy_ns", rank.busy_ns);
  object.field("idle_ns", rank.idle_ns);
  object.close();
}

void append_try(std::string& out, const PipelineTry& tried) {
  io::ObjectWriter object(out);
  object.field("schedule", to_string(tried.schedule));
  object.field("stages_per_rank", tried.stages_per_rank);
  if (!tried.refusal.empty()) {
    object.field("refusal", tried.refusal);
  } else {
    object.field("outcome", to_string(tried.outcome));
    object.field("step_ns", tried.step_ns < 0 ? std::nullopt : std::optional(tried.step_ns));
    object.field("bound_ns", tried.bound_ns);
    object.field("nodes", tried.nodes);
  }
  object.close();
}

}  // namespace

std::string to_json(const PipelinePlan& plan) {
  std::string out;
  io::ObjectWriter object(out);
  object.field("format", "stowage-pipeline-plan");
  object.field("version", 1);
  object.field("outcome", to_string(plan.outcome));
  if (plan.stages.empty()) {
    object.field("smallest_bytes", plan.smallest_bytes);
    object.field("bound_bytes", plan.bound_bytes);
  } else {
    object.field("schedule", to_string(plan.schedule));
    object.field("stages_per_rank", plan.stages_per_rank);
    object.field("step_ns", plan.step_ns);
    object.field("bound_ns", plan.bound_ns);
    object.field("gap", plan.gap());
    append_list(object, out, "stages", plan.stages, [&](const PipelineStage& stage) {
      io::ObjectWriter entry(out);
      entry.field("rank", stage.rank);
      entry.field("first", stage.first);
      entry.field("end", stage.end);
      entry.close();
    });
    append_list(object, out, "ranks", plan.ranks, [&](const PipelineRank& rank) { append_rank(out, rank); });
    append_list(object, out, "actions", plan.actions, [&](const auto& list) { append_actions(out, list); });
  }
  append_list(object, out, "tried", plan.tried, [&](const PipelineTry& tried) { append_try(out, tried); });
  object.close();
  return out;
}

}  // namespace stowage
