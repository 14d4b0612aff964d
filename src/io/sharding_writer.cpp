// Writes a sharding plan. Placements are texts such as "S0,R", one part for each axis of the mesh.
#include "stowage/io.h"
#include "stowage/json.h"

namespace stowage {
namespace {

void append_part(std::string& out, AxisPlacement part) {
  using Kind = AxisPlacement::Kind;
  switch (part.kind) {
    case Kind::kShard: out += 'S', io::append_int(out, part.dim); break;
    case Kind::kReplicate: out += 'R'; break;
    case Kind::kPartialSum: out += "Psum"; break;
    case Kind::kPartialAvg: out += "Pavg"; break;
    case Kind::kPartialMax: out += "Pmax"; break;
  }
}

// An output that is not there has no placement: null.
void append_placements(io::ObjectWriter& object, std::string& out, std::string_view name,
                       const std::vector<MeshPlacement>& list) {
  object.key(name);
  out += '[';
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ',';
    if (list[i].empty()) {
      out += "null";
    } else {
      io::append_string(out, to_text(list[i]));
    }
  }
  out += ']';
}

void append_stage(io::ObjectWriter& parent, std::string& out, std::string_view name, const StageResult& stage) {
  parent.key(name);
  io::ObjectWriter object(out);
  object.field("outcome", to_string(stage.outcome));
  object.field("value", stage.value);
  object.field("bound", stage.bound);
  object.field("gap", stage.gap());
  object.field("seconds", stage.seconds);
  object.close();
}

void append_bytes(io::ObjectWriter& parent, std::string& out, const ShardingBytes& bytes) {
  parent.key("bytes");
  io::ObjectWriter object(out);
  object.field("parameters", bytes.parameters);
  object.field("gradients", bytes.gradients);
  object.field("optimizer_state", bytes.optimizer_state);
  object.field("buffers", bytes.buffers);
  object.field("inputs", bytes.inputs);
  object.field("saved", bytes.saved);
  object.field("redundant", bytes.redundant);
  object.field("ideal", bytes.ideal);
  object.field("peak", bytes.peak);
  object.field("peak_op", bytes.peak_op);
  if (bytes.limited_peak != bytes.peak) object.field("limited_peak", bytes.limited_peak);
  object.close();
}

void append_sharding(std::string& out, const OpSharding& op, bool overlap) {
  io::ObjectWriter object(out);
  append_placements(object, out, "inputs", op.inputs);
  append_placements(object, out, "computed", op.computed);
  append_placements(object, out, "outputs", op.outputs);
  object.field("replicated", op.replicated);
  if (!op.why.empty()) object.field("why", op.why);
  if (!op.recipe.empty()) object.field("recipe", op.recipe);
  object.field("compute_ns", op.compute_ns);
  object.field("communication_ns", op.communication_ns);
  object.field("transient_bytes", op.transient_bytes);
  if (overlap) {
    object.field("waited_ns", op.waited_ns);
    object.field("ahead_bytes", op.ahead_bytes);
  }
  object.close();
}

void append_tensor(std::string& out, const TensorSharding& tensor) {
  io::ObjectWriter object(out);
  object.field("placement", to_text(tensor.placement));
  object.field("local_bytes", tensor.local_bytes);
  object.field("redundant_bytes", tensor.redundant_bytes);
  object.field("saved", tensor.saved);
  object.close();
}

}  // namespace

std::string to_text(const MeshPlacement& placement) {
  std::string out;
  for (const AxisPlacement part : placement) {
    if (!out.empty()) out += ',';
    append_part(out, part);
  }
  return out;
}

std::string to_json(const ShardingPlan& plan) {
  std::string out;
  io::ObjectWriter object(out);
  object.field("format", "stowage-sharding");
  object.field("version", 1);
  append_stage(object, out, "redundancy", plan.redundancy);
  append_stage(object, out, "time", plan.time);
  append_bytes(object, out, plan.bytes);
  object.field("compute_ns", plan.compute_ns);
  object.field("communication_ns", plan.communication_ns);
  if (plan.overlap) {
    object.field("overlapped_ns", plan.overlapped_ns);
    object.field("bucket_bytes", plan.bucket_bytes);
    object.key("links_ns");
    for (std::size_t a = 0; a < plan.links_ns.size(); ++a) {
      out += a == 0 ? '[' : ',';
      io::append_double(out, plan.links_ns[a]);
    }
    out += plan.links_ns.empty() ? "[]" : "]";
  }
  object.field("variables", plan.variables);
  object.field("choices", plan.choices);
  object.key("tensors");
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) out += t == 0 ? '[' : ',', append_tensor(out, plan.tensors[t]);
  out += plan.tensors.empty() ? "[]" : "]";
  object.key("ops");
  for (std::size_t o = 0; o < plan.ops.size(); ++o)
    out += o == 0 ? '[' : ',', append_sharding(out, plan.ops[o], plan.overlap);
  out += plan.ops.empty() ? "[]" : "]";
  object.close();
  return out;
}

}  // namespace stowage
