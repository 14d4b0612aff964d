// Canonical JSON of graphs and plans: fixed key order, defaults left out, one buffer, op, step or placement a line. The
// same value gives the same bytes, on every machine. O(size of the output).
#include <algorithm>
#include <string>

#include "stowage/io.h"
#include "stowage/json.h"

namespace stowage {
namespace {

using io::ObjectWriter;

// Appends [\n item,\n item\n], each item by append(out, item).
template <class List, class Append>
void append_lines(std::string& out, const List& list, Append append) {
  out += '[';
  bool first = true;
  for (const auto& item : list) {
    out += first ? "\n" : ",\n";
    first = false;
    append(out, item);
  }
  out += first ? "]" : "\n]";
}

// Appends [a,b,c], each by append(out, item).
template <class List, class Append>
void append_list(std::string& out, const List& list, Append append) {
  out += '[';
  bool first = true;
  for (const auto& item : list) {
    if (!first) out += ',';
    first = false;
    append(out, item);
  }
  out += ']';
}

template <class Ids>
void ids_field(std::string& out, ObjectWriter& object, std::string_view name, const Ids& ids) {
  if (ids.empty()) return;
  object.key(name);
  append_list(out, ids, [](std::string& to, auto id) { io::append_int(to, id.value); });
}

void meta_field(ObjectWriter& object, const std::string& meta) {
  if (!meta.empty()) object.raw("meta", meta);
}

void append_buffer(std::string& out, const Buffer& buffer) {
  ObjectWriter object(out);
  object.field("name", buffer.name);
  object.field("bytes", buffer.bytes);
  object.field("kind", kBufferKindNames[static_cast<std::size_t>(buffer.kind)]);
  if (buffer.resident) object.field("resident", true);
  if (buffer.returned) object.field("returned", true);
  if (buffer.leaves) object.field("leaves", true);
  meta_field(object, buffer.meta);
  object.close();
}

void append_scratch(std::string& out, const Scratch& scratch) {
  ObjectWriter object(out);
  object.field("bytes", scratch.bytes);
  object.field("from", scratch.from);
  object.field("to", scratch.to);
  object.close();
}

void append_reuse_pair(std::string& out, const ReusePair& pair) {
  out += '[';
  io::append_int(out, pair.read.value);
  out += ',';
  io::append_int(out, pair.created.value);
  out += ']';
}

// What happens inside the op: ticks, scratch, born.
void inside_fields(std::string& out, ObjectWriter& object, const Op& op) {
  if (op.ticks != 1) object.field("ticks", op.ticks);
  if (!op.scratch.empty()) {
    object.key("scratch");
    append_list(out, op.scratch, append_scratch);
  }
  if (std::any_of(op.born.begin(), op.born.end(), [](auto tick) { return tick != 0; })) {
    object.key("born");
    append_list(out, op.born, [](std::string& to, auto tick) { io::append_int(to, tick); });
  }
}

void append_op(std::string& out, const Op& op) {
  ObjectWriter object(out);
  object.field("name", op.name);
  object.field("target", op.target);
  ids_field(out, object, "reads", op.reads);
  ids_field(out, object, "writes", op.writes);
  ids_field(out, object, "creates", op.creates);
  if (op.cost_ns != 0) object.field("cost_ns", op.cost_ns);
  inside_fields(out, object, op);
  std::string traits;
  for (const auto& [trait, name] : {std::pair{op.rng, R"("rng")"}, {op.effect, R"("effect")"}, {op.once, R"("once")"}})
    if (trait) traits += (traits.empty() ? "[" : ",") + std::string(name);
  if (!traits.empty()) object.raw("traits", traits + "]");
  if (!op.takeover.empty()) {
    object.key("takeover");
    append_list(out, op.takeover, append_reuse_pair);
  }
  ids_field(out, object, "after", op.after);
  meta_field(object, op.meta);
  object.close();
}

void append_step(std::string& out, const Step& step) {
  ObjectWriter object(out);
  if (step.kind == Step::Kind::kRun) {
    object.field("op", step.op.value);
  } else {
    object.field(step.kind == Step::Kind::kSwapOut ? "swap_out" : "swap_in", step.buffer.value);
    object.field("until", step.until);
  }
  object.close();
}

void append_placement(std::string& out, const Placement& placement) {
  ObjectWriter object(out);
  object.field("buffer", placement.buffer.value);
  object.field("from", placement.from);
  object.field("to", placement.to);
  object.field("offset", placement.offset);
  object.close();
}

void append_scratch_placement(std::string& out, const ScratchPlacement& scratch) {
  ObjectWriter object(out);
  object.field("step", scratch.step);
  object.field("index", scratch.index);
  object.field("offset", scratch.offset);
  object.close();
}

}  // namespace

std::string to_json(const Graph& graph) {
  std::string out;
  ObjectWriter object(out);
  object.field("format", "stowage-graph");
  object.field("version", 1);
  object.field("name", graph.name);
  object.field("align", graph.align);
  meta_field(object, graph.meta);
  object.key("buffers");
  append_lines(out, graph.buffers, append_buffer);
  object.key("ops");
  append_lines(out, graph.ops, append_op);
  object.close();
  out += '\n';
  return out;
}

std::string to_json(const Plan& plan) {
  std::string out;
  ObjectWriter object(out);
  object.field("format", "stowage-plan");
  object.field("version", 1);
  object.field("graph_sha256", plan.graph_sha256);
  object.field("align", plan.align);
  object.field("arena_bytes", plan.arena_bytes);
  ids_field(out, object, "away", plan.away);
  meta_field(object, plan.meta);
  object.key("steps");
  append_lines(out, plan.steps, append_step);
  object.key("placements");
  append_lines(out, plan.placements, append_placement);
  object.key("scratch");
  append_lines(out, plan.scratch, append_scratch_placement);
  object.close();
  out += '\n';
  return out;
}

void seal(Graph& graph) { graph.sha256 = sha256_hex(to_json(graph)); }

}  // namespace stowage
