#include "explain/advice.h"

#include <array>
#include <cstdio>

namespace stowage::explained {

std::string rounded_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < units.size()) value /= 1024, ++unit;
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text.data();
}

std::string short_line(const Op& op) {
  const std::string line = source_line(op);
  const std::size_t folder = line.find_last_of("/\\");
  return folder == std::string::npos ? line : line.substr(folder + 1);
}

std::string at_line(const Op& op) {
  const std::string line = short_line(op);
  return line.empty() ? "" : " (" + line + ")";
}

std::string an_arena(const Scene& scene, std::int64_t arena) {
  return "an arena of " + rounded_bytes(arena) + " instead of " + rounded_bytes(scene.arena_bytes);
}

bool worth(std::int64_t part, std::int64_t whole) { return part > 0 && part >= whole / 20; }

IdVector<BufferId, std::int32_t> makers(const Graph& graph) {
  IdVector<BufferId, std::int32_t> maker(graph.buffers.size(), -1);
  for (std::size_t i = 0; i < graph.ops.size(); ++i)
    for (const BufferId b : graph.ops[i].creates) maker[b] = static_cast<std::int32_t>(i);
  return maker;
}

IdVector<BufferId, char> live_at_peak(const Graph& graph, const PeakMoment& peak) {
  IdVector<BufferId, char> live(graph.buffers.size(), 0);
  for (const PeakHolder& holder : peak.holders)
    if (holder.buffer.valid()) live[holder.buffer] = 1;
  return live;
}

std::vector<Advice> advise(const Scene& scene) {
  std::vector<Advice> advice;
  for (Rule* rule : {gradients_meet, kept_gradients, accumulation, tied_gradient, logits, update_temporaries,
                     returned_results, activations, residents})
    rule(scene, advice);
  return advice;
}

}  // namespace stowage::explained
