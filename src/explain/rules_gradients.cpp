// Rules about gradients: what keeps them alive longer than from their making to their update.
#include <algorithm>
#include <string>

#include "base/csr.h"
#include "explain/advice.h"

namespace stowage::explained {
namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

bool has(const std::vector<BufferId>& list, BufferId buffer) {
  return std::find(list.begin(), list.end(), buffer) != list.end();
}

bool is_gradient(const Buffer& buffer) { return buffer.kind == BufferKind::kGradient && !buffer.resident; }

std::int64_t gradient_bytes_of(const Graph& graph, const Op& op) {
  std::int64_t sum = 0;
  for (const auto* list : {&op.reads, &op.writes})
    for (const BufferId b : *list)
      if (is_gradient(graph.buffer(b))) sum += graph.buffer(b).bytes;
  return sum;
}

std::int64_t all_gradient_bytes(const Graph& graph) {
  std::int64_t sum = 0;
  for (const Buffer& buffer : graph.buffers)
    if (is_gradient(buffer)) sum += buffer.bytes;
  return sum;
}

// Per non-resident buffer: the ops that give it content.
Csr sources(const Graph& graph) {
  Csr by_op;
  for (const Op& op : graph.ops) {
    for (const auto* list : {&op.creates, &op.writes})
      for (const BufferId b : *list)
        if (!graph.buffer(b).resident) by_op.items.push_back(b.value);
    by_op.close_row();
  }
  return transpose(by_op, graph.buffers.size());
}

// Per op: how many activations the ops before it have made. A backward pass that is followed by another forward pass
// stands before more.
std::vector<std::int32_t> activations_before(const Graph& graph) {
  std::vector<std::int32_t> count{0};
  for (const Op& op : graph.ops) {
    std::int32_t made = 0;
    for (const BufferId b : op.creates) made += graph.buffer(b).kind == BufferKind::kActivation;
    count.push_back(count.back() + made);
  }
  return count;
}

//   g1 ─▶ norm ─┐                    ┌─▶ g1 scaled ─▶ update        `waist`: a small buffer that is made from (nearly) all gradients
//   g2 ─▶ norm ─┼─▶ stack ─▶ waist ──┼─▶ g2 scaled ─▶ update        and read again beside (nearly) all of them
//   g3 ─▶ norm ─┘                    └─▶ g3 scaled ─▶ update
struct Waist {
  bool norm = false;
  OpId scaling;  // one of the ops that read it beside a gradient
};

// What flows into `buffer`, back to the first gradients on each way.
struct Origin {
  std::int64_t gradient_bytes = 0;
  bool norm = false;
};
Origin origin(const Graph& graph, const Csr& source, BufferId buffer) {
  Origin origin;
  IdVector<BufferId, char> seen(graph.buffers.size(), 0);
  std::vector<BufferId> open{buffer};
  seen[buffer] = 1;
  while (!open.empty()) {
    const BufferId b = open.back();
    open.pop_back();
    for (const std::int32_t o : source[b]) {
      const Op& op = graph.ops[static_cast<std::size_t>(o)];
      origin.norm |= contains(op.target, "norm");
      for (const auto* list : {&op.reads, &op.writes})
        for (const BufferId from : *list) {
          const Buffer& read = graph.buffer(from);
          if (read.resident || seen[from]) continue;
          seen[from] = 1;
          if (is_gradient(read)) {
            origin.gradient_bytes += read.bytes;
          } else {
            open.push_back(from);
          }
        }
    }
  }
  return origin;
}

// The small buffers that ops read beside half of all gradient bytes.
std::vector<BufferId> candidates(const Graph& graph, std::int64_t gradients) {
  IdVector<BufferId, std::int64_t> beside(graph.buffers.size(), 0);
  for (const Op& op : graph.ops) {
    const std::int64_t bytes = gradient_bytes_of(graph, op);
    if (bytes == 0) continue;
    for (const BufferId b : op.reads)
      if (!graph.buffer(b).resident && !is_gradient(graph.buffer(b)) && graph.buffer(b).bytes <= gradients / 100)
        beside[b] += bytes;
  }
  std::vector<BufferId> found;
  for (const BufferId b : beside.ids())
    if (beside[b] >= gradients / 2 && beside[b] > 0) found.push_back(b);
  return found;
}

}  // namespace

void gradients_meet(const Scene& scene, std::vector<Advice>& advice) {
  const Graph& graph = scene.graph;
  const std::int64_t held = scene.peak.of_kind[static_cast<std::size_t>(BufferKind::kGradient)];
  const std::int64_t gradients = all_gradient_bytes(graph);
  if (!worth(held, scene.peak.bytes)) return;
  const Csr source = sources(graph);
  Graph changed = graph;
  Waist waist;
  IdVector<OpId, char> scales(graph.ops.size(), 0);
  for (const BufferId b : candidates(graph, gradients)) {
    const Origin from = origin(graph, source, b);
    if (from.gradient_bytes < gradients / 10 * 9) continue;
    waist.norm |= from.norm;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      if (!has(graph.ops[i].reads, b) || gradient_bytes_of(graph, graph.ops[i]) == 0) continue;
      waist.scaling = OpId(i);
      scales[waist.scaling] = 1;
      std::erase(changed.ops[i].reads, b);
    }
  }
  // Capture lets updates that read no gradient wait for all of the step proper, scaling included
  for (Op& op : changed.ops) std::erase_if(op.after, [&](OpId earlier) { return scales[earlier] != 0; });
  if (!waist.scaling.valid()) return;
  const std::int64_t arena = scene.plan_again(std::move(changed));
  if (!worth(scene.arena_bytes - arena, scene.arena_bytes)) return;
  const Op& op = graph.op(waist.scaling);
  const std::string what = waist.norm ? "clip_grad_norm_" + at_line(op) : "what " + op.target + at_line(op) + " reads";
  advice.push_back({"gradients-meet",
                    what + " needs all gradients, " + rounded_bytes(gradients) +
                        ", before the first update. Clipped each by itself (clip_grad_value_), "
                        "each update could follow its gradient: " +
                        an_arena(scene, arena) + ".",
                    held, arena});
}

void kept_gradients(const Scene& scene, std::vector<Advice>& advice) {
  const Graph& graph = scene.graph;
  IdVector<BufferId, char> added(graph.buffers.size(), 0), counted(graph.buffers.size(), 0);
  std::int64_t bytes = 0;
  const Op* zeroing = nullptr;
  const auto a_gradient = [&](BufferId b) {
    const Buffer& buffer = graph.buffer(b);
    return buffer.resident && (buffer.kind == BufferKind::kGradient || buffer.kind == BufferKind::kConstant);
  };
  for (const Op& op : graph.ops)
    for (const BufferId b : op.writes)
      if (a_gradient(b) && contains(op.target, "add")) added[b] = 1;
  for (const Op& op : graph.ops)
    for (const BufferId b : op.writes)
      if (added[b] && !counted[b] && contains(op.target, "zero_")) {
        counted[b] = 1;
        bytes += graph.buffer(b).bytes;
        zeroing = &op;
      }
  if (zeroing == nullptr || !worth(bytes, scene.resident_bytes + scene.arena_bytes)) return;
  advice.push_back(
      {"kept-gradients",
       "zero_grad(set_to_none=False)" + at_line(*zeroing) + " keeps the memory of all gradients, " +
           rounded_bytes(bytes) +
           ", from step to step. With set_to_none=True (the default) a gradient lives from its making to its update.",
       bytes});
}

void accumulation(const Scene& scene, std::vector<Advice>& advice) {
  const Graph& graph = scene.graph;
  const IdVector<BufferId, std::int32_t> maker = makers(graph);
  const std::vector<std::int32_t> made_before = activations_before(graph);
  const IdVector<BufferId, char> live = live_at_peak(graph, scene.peak);
  IdVector<BufferId, std::int32_t> times(graph.buffers.size(), 0);
  std::int64_t held = 0, activations = 0;
  const Op* adding = nullptr;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!contains(graph.ops[i].target, "add")) continue;
    for (const BufferId b : graph.ops[i].writes) {
      if (!is_gradient(graph.buffer(b)) || made_before[i] == made_before[static_cast<std::size_t>(maker[b])]) continue;
      if (times[b]++ == 0 && live[b]) held += graph.padded(graph.buffer(b).bytes);
      adding = &graph.ops[i];
    }
  }
  for (const Buffer& buffer : graph.buffers)
    if (buffer.kind == BufferKind::kActivation && !buffer.resident) activations += graph.padded(buffer.bytes);
  const std::int64_t batches = 1 + (times.empty() ? 0 : *std::max_element(times.begin(), times.end()));
  if (batches < 2 || !worth(held, scene.peak.bytes) || activations - activations / batches >= held) return;
  advice.push_back({"accumulation",
                    std::to_string(batches) + " micro-batches add up their gradients" + at_line(*adding) + ": " +
                        rounded_bytes(held) +
                        " of them wait through the peak. A micro-batch has activations of about " +
                        rounded_bytes(activations / batches) + "; all of them as one batch would hold " +
                        rounded_bytes(activations) + " and let updates follow their gradients.",
                    held});
}

// Parameters of as many bytes as `bytes` that several ops read; the name of the only one, or "".
static std::string shared_parameter(const Graph& graph, std::int64_t bytes) {
  IdVector<BufferId, std::int32_t> readers(graph.buffers.size(), 0);
  for (const Op& op : graph.ops)
    for (const BufferId b : op.reads) ++readers[b];
  std::string name;
  for (const BufferId b : readers.ids()) {
    const Buffer& buffer = graph.buffer(b);
    if (buffer.kind != BufferKind::kParameter || buffer.bytes != bytes || readers[b] < 2) continue;
    if (!name.empty()) return {};
    name = buffer.name;
  }
  return name;
}

void tied_gradient(const Scene& scene, std::vector<Advice>& advice) {
  const Graph& graph = scene.graph;
  const IdVector<BufferId, std::int32_t> maker = makers(graph);
  const std::vector<std::int32_t> made_before = activations_before(graph);
  const IdVector<BufferId, char> live = live_at_peak(graph, scene.peak);
  OpId sum;
  BufferId waiting, late;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (!contains(op.target, "add") || op.creates.size() != 1 || op.reads.size() != 2) continue;
    const Buffer& made = graph.buffer(op.creates[0]);
    const auto is_part = [&](BufferId b) { return maker[b] >= 0 && graph.buffer(b).bytes == made.bytes; };
    if (!is_gradient(made) || !is_part(op.reads[0]) || !is_part(op.reads[1])) continue;
    const auto [first, second] =
        std::minmax(op.reads[0], op.reads[1], [&](BufferId a, BufferId b) { return maker[a] < maker[b]; });
    if (!live[first] || made_before[i] != made_before[static_cast<std::size_t>(maker[first])]) continue;
    if (waiting.valid() && graph.buffer(first).bytes <= graph.buffer(waiting).bytes) continue;
    sum = OpId(i), waiting = first, late = second;
  }
  if (!waiting.valid()) return;
  const std::int64_t bytes = graph.padded(graph.buffer(waiting).bytes);
  if (!worth(bytes, scene.peak.bytes)) return;
  Graph changed = graph;
  std::erase(changed.ops[sum.index()].reads, waiting);
  const std::int64_t arena = scene.plan_again(std::move(changed));
  if (!worth(scene.arena_bytes - arena, scene.arena_bytes)) return;
  const auto op_of = [&](BufferId b) -> const Op& { return graph.ops[static_cast<std::size_t>(maker[b])]; };
  const std::string name = shared_parameter(graph, graph.buffer(waiting).bytes);
  advice.push_back({"tied-gradient",
                    "the gradient of " + (name.empty() ? "a shared weight" : name) + ", " + rounded_bytes(bytes) +
                        ", is a sum: the part that " + op_of(waiting).target + " makes waits for that of " +
                        op_of(late).target + ". With two weights of their own each would be used at once: " +
                        an_arena(scene, arena) + ", for a weight and its optimizer state more.",
                    bytes, arena});
}

}  // namespace stowage::explained
