// Rules about what a kind of bytes takes: the loss, the optimizer's temporaries, results, activations, residents.
#include <algorithm>
#include <string>

#include "explain/advice.h"

namespace stowage::explained {
namespace {

bool contains_any(const std::string& text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string::npos; });
}

std::int64_t live_bytes(const Graph& graph, const IdVector<BufferId, char>& live,
                        const IdVector<BufferId, char>& which) {
  std::int64_t sum = 0;
  for (const BufferId b : live.ids())
    if (live[b] && which[b]) sum += graph.padded(graph.buffer(b).bytes);
  return sum;
}

std::int64_t peak_of(const Scene& scene, BufferKind kind) { return scene.peak.of_kind[static_cast<std::size_t>(kind)]; }

std::int64_t resident_of(const Graph& graph, BufferKind kind) {
  std::int64_t sum = 0;
  for (const Buffer& buffer : graph.buffers)
    if (buffer.resident && buffer.kind == kind) sum += buffer.bytes;
  return sum;
}

}  // namespace

// Cross entropy's buffers: what its kernels touch, and what is as large as those and made from them or for them.
//
//   hidden ─▶ mm ─▶ logits ─▶ _log_softmax ─▶ log p ─▶ nll_loss
//                                               └─▶ _log_softmax_backward_data ─▶ d logits ─▶ mm
void logits(const Scene& scene, std::vector<Advice>& advice) {
  constexpr std::int64_t kPieces = 4;
  const Graph& graph = scene.graph;
  const IdVector<BufferId, char> live = live_at_peak(graph, scene.peak);
  IdVector<BufferId, char> which(graph.buffers.size(), 0);
  const Op* loss = nullptr;
  std::int64_t largest = 0;
  const auto each = [&](const Op& op, auto&& visit) {
    for (const auto* list : {&op.reads, &op.writes, &op.creates})
      for (const BufferId b : *list)
        if (!graph.buffer(b).resident) visit(b);
  };
  for (const Op& op : graph.ops) {
    if (!contains_any(op.target, {"log_softmax", "nll_loss", "cross_entropy"})) continue;
    if (loss == nullptr) loss = &op;
    each(op, [&](BufferId b) { which[b] = 1, largest = std::max(largest, graph.buffer(b).bytes); });
  }
  if (loss == nullptr) return;
  for (const Op& op : graph.ops) {  // copies of what is known
    if (!contains_any(op.target, {"clone", "copy"})) continue;
    for (const BufferId c : op.creates)
      for (const BufferId r : op.reads)
        if (graph.buffer(c).bytes == largest && graph.buffer(r).bytes == largest && (which[c] || which[r]) &&
            !graph.buffer(r).resident)
          which[c] = which[r] = 1;
  }
  const std::int64_t held = live_bytes(graph, live, which);
  if (held < scene.peak.bytes / 5) return;
  Graph changed = graph;
  for (const BufferId b : which.ids())
    if (which[b]) changed.buffers[b.index()].bytes /= kPieces;
  const std::int64_t arena = scene.plan_again(std::move(changed));
  if (!worth(scene.arena_bytes - arena, scene.arena_bytes)) return;
  advice.push_back({"logits",
                    "the logits and what cross entropy" + at_line(*loss) + " makes of them hold " +
                        rounded_bytes(held) + " of the peak. The loss in " + std::to_string(kPieces) +
                        " pieces of the batch, each with its own backward: about " + an_arena(scene, arena) + ".",
                    held, arena});
}

void update_temporaries(const Scene& scene, std::vector<Advice>& advice) {
  const Graph& graph = scene.graph;
  IdVector<BufferId, char> from_state(graph.buffers.size(), 0);  // temporaries made from optimizer state
  const Op* update = nullptr;
  for (const Op& op : graph.ops) {
    const auto state = [&](BufferId b) { return graph.buffer(b).kind == BufferKind::kOptimizerState || from_state[b]; };
    if (std::none_of(op.reads.begin(), op.reads.end(), state)) continue;
    for (const BufferId b : op.creates) {
      if (graph.buffer(b).kind != BufferKind::kTemporary) continue;
      from_state[b] = 1;
      if (update == nullptr) update = &op;
    }
  }
  const std::int64_t held = live_bytes(graph, live_at_peak(graph, scene.peak), from_state);
  if (!worth(held, scene.peak.bytes)) return;
  Graph changed = graph;
  for (const BufferId b : from_state.ids())
    if (from_state[b]) changed.buffers[b.index()].bytes = 0;
  const std::int64_t arena = scene.plan_again(std::move(changed));
  if (!worth(scene.arena_bytes - arena, scene.arena_bytes)) return;
  advice.push_back({"update-temporaries",
                    "temporaries of the optimizer" + at_line(*update) + " hold " + rounded_bytes(held) +
                        " of the peak. fused=True makes none (Adam, AdamW, SGD, Adagrad): " + an_arena(scene, arena) +
                        ".",
                    held, arena});
}

void returned_results(const Scene& scene, std::vector<Advice>& advice) {
  const Graph& graph = scene.graph;
  std::int64_t bytes = 0;
  const Buffer* largest = nullptr;
  Graph changed = graph;
  for (std::size_t b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    if (!buffer.returned) continue;
    bytes += graph.padded(buffer.bytes);
    if (largest == nullptr || buffer.bytes > largest->bytes) largest = &buffer;
    changed.buffers[b].returned = false;
  }
  if (!worth(bytes, scene.resident_bytes + scene.arena_bytes)) return;
  const std::int64_t arena = scene.plan_again(std::move(changed));
  advice.push_back({"returned",
                    "the step returns " + rounded_bytes(bytes) + ", the largest is " + largest->name + " (" +
                        rounded_bytes(largest->bytes) +
                        "): it stays to the end of the step, and is copied out. Without results " +
                        an_arena(scene, arena) + ".",
                    bytes, arena});
}

void activations(const Scene& scene, std::vector<Advice>& advice) {
  const std::int64_t held = peak_of(scene, BufferKind::kActivation);
  if (held < scene.peak.bytes / 2 || held == 0) return;
  advice.push_back(
      {"activations",
       "what backward needs of forward holds " + rounded_bytes(held) + " of the peak's " +
           rounded_bytes(scene.peak.bytes) +
           ". It grows with the batch: a budget buys it back for time (above), a smaller batch in proportion.",
       held});
}

void residents(const Scene& scene, std::vector<Advice>& advice) {
  const std::int64_t parameters = resident_of(scene.graph, BufferKind::kParameter);
  const std::int64_t state = resident_of(scene.graph, BufferKind::kOptimizerState);
  const std::int64_t all = scene.resident_bytes + scene.arena_bytes;
  if (parameters + state < all / 10 * 6 || parameters + state == 0) return;
  std::string text = "parameters and optimizer state are " + rounded_bytes(parameters + state) + " of " +
                     rounded_bytes(all) + ", there from step to step: no plan changes them.";
  if (state > parameters + parameters / 2)
    text += " The optimizer keeps " + rounded_bytes(state) + " for " + rounded_bytes(parameters) +
            " of parameters; one with a single state per parameter (SGD with momentum) keeps " +
            rounded_bytes(parameters) + ".";
  advice.push_back({"residents", std::move(text), parameters + state});
}

}  // namespace stowage::explained
