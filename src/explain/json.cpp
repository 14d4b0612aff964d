// An explanation as one JSON object.
#include "stowage/json.h"
#include "stowage/explain.h"

namespace stowage {
namespace {

void kinds(io::ObjectWriter& object, std::string& out, std::string_view name,
           const std::array<std::int64_t, kBufferKindNames.size()>& bytes) {
  object.key(name);
  io::ObjectWriter inner(out);
  for (std::size_t k = 0; k < bytes.size(); ++k) inner.field(kBufferKindNames[k], bytes[k]);
  inner.close();
}

template <class Items, class Append>
void list(io::ObjectWriter& object, std::string& out, std::string_view name, const Items& items, Append append) {
  object.key(name);
  out += '[';
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ',';
    io::ObjectWriter inner(out);
    append(inner, items[i]);
    inner.close();
  }
  out += ']';
}

void op_field(io::ObjectWriter& object, const Graph& graph, std::string_view name, OpId id) {
  if (!id.valid()) {
    object.null(name);
    return;
  }
  object.field(name, id.value);
  object.field(std::string(name) + "_target", graph.op(id).target);
  object.field(std::string(name) + "_line", source_line(graph.op(id)));
}

void append_result(io::ObjectWriter& object, const PlanResult& r) {
  object.field("outcome", to_string(r.outcome));
  object.field("resident_bytes", r.resident_bytes);
  object.field("program_peak_bytes", r.program_peak_bytes);
  object.field("lower_bound_bytes", r.lower_bound_bytes);
  object.field("smallest_bytes", r.smallest_bytes);
  object.field("program_step_ns", r.program_step_ns);
  if (!r.plan) {
    object.null("arena_bytes");
    return;
  }
  object.field("arena_bytes", r.plan->arena_bytes);
  object.field("peak_bytes", r.peak_bytes);
  object.field("step_ns", r.step_ns);
  object.field("step_bound_ns", r.step_bound_ns.value_or(r.program_step_ns));
  object.field("recomputed_ops", r.recomputed_ops);
  object.field("swapped_bytes", r.swapped_bytes);
}

void append_peak(std::string& out, const Graph& graph, const PeakMoment& peak) {
  io::ObjectWriter object(out);
  object.field("step", peak.step);
  op_field(object, graph, "op", peak.op);
  object.field("bytes", peak.bytes);
  object.field("scratch_bytes", peak.scratch_bytes);
  kinds(object, out, "bytes_by_kind", peak.of_kind);
  list(object, out, "holders", peak.holders, [&](io::ObjectWriter& inner, const PeakHolder& holder) {
    if (holder.buffer.valid()) {
      inner.field("buffer", holder.buffer.value);
      inner.field("name", graph.buffer(holder.buffer).name);
    } else {
      inner.null("buffer");
      inner.field("name", "scratch");
    }
    inner.field("bytes", holder.bytes);
    op_field(inner, graph, "maker", holder.maker);
    op_field(inner, graph, "last_user", holder.last_user);
  });
  object.close();
}

}  // namespace

std::string to_json(const Graph& graph, const Explanation& e) {
  std::string out;
  io::ObjectWriter object(out);
  object.field("graph", graph.name);
  append_result(object, e.result);
  object.field("free_arena_bytes", e.free_arena_bytes);
  kinds(object, out, "resident_by_kind", e.resident_of_kind);
  object.key("peak");
  append_peak(out, graph, e.peak);
  list(object, out, "prices", e.prices, [](io::ObjectWriter& inner, const Price& price) {
    inner.field("budget_bytes", price.budget_bytes);
    append_result(inner, price.result);
  });
  object.field("prices_left_out", e.prices_left_out);
  list(object, out, "advice", e.advice, [](io::ObjectWriter& inner, const Advice& advice) {
    inner.field("rule", advice.rule);
    inner.field("text", advice.text);
    inner.field("held_bytes", advice.held_bytes);
    inner.field("arena_bytes", advice.arena_bytes);
  });
  object.close();
  return out;
}

}  // namespace stowage
