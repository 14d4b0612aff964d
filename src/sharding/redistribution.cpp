#include "sharding/redistribution.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <set>

namespace stowage {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

bool cut_later(Code code, std::size_t axis, AxisCode part, std::size_t axes) {
  for (std::size_t b = axis + 1; b < axes; ++b)
    if (axis_code(code, b) == part) return true;
  return false;
}

// Latencies and shares of bytes: gather and scatter 1, all-reduce 2, to nothing 0; negative: there is no such step.
int passes(AxisCode from, AxisCode to) {
  if (from == kWhole) return 0;
  if (to < 0) return -1;
  return from < 0 && to == kWhole ? 2 : 1;
}

double pass_ns(double bytes, const MeshAxis& axis) {
  const double n = axis.size;
  return (n - 1) * axis.latency_ns + (n - 1) / n * bytes / axis.gbps;
}

double step_ns(const ProgramTensor& tensor, Code from, Code to, std::size_t axis, const Mesh& mesh) {
  const int count = passes(axis_code(from, axis), axis_code(to, axis));
  if (count <= 0) return count < 0 ? kNever : 0;
  const auto bytes = static_cast<double>(std::max(largest_bytes(tensor, from, mesh), largest_bytes(tensor, to, mesh)));
  return count * pass_ns(bytes, mesh.axes[axis]);
}

}  // namespace

double all_reduce_ns(std::int64_t bytes, const MeshAxis& axis) { return 2 * pass_ns(static_cast<double>(bytes), axis); }

double all_gather_ns(std::int64_t bytes, const MeshAxis& axis) { return pass_ns(static_cast<double>(bytes), axis); }

std::vector<Hop> steps_within(const std::vector<Code>& codes, const ProgramTensor& tensor, const Mesh& mesh) {
  const std::size_t axes = mesh.axes.size();
  std::unordered_map<Code, char> known;
  for (const Code code : codes) known[code] = 1;
  std::vector<AxisCode> parts = {kWhole, kPartSum, kPartAvg, kPartMax};
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) parts.push_back(shard(static_cast<int>(d)));
  std::vector<Hop> steps;
  for (const Code from : codes) {
    for (std::size_t a = 0; a < axes; ++a) {
      const AxisCode before = axis_code(from, a);
      if (is_shard(before) && cut_later(from, a, before, axes)) continue;
      for (const AxisCode after : parts) {
        const Code to = with_axis(from, a, after);
        if (after == before || !known.contains(to) || (is_shard(after) && cut_later(from, a, after, axes))) continue;
        const double ns = step_ns(tensor, from, to, a, mesh);
        if (ns < kNever) steps.push_back({from, to, ns});
      }
    }
  }
  return steps;
}

std::size_t axis_of(const Hop& hop) { return static_cast<std::size_t>(std::countr_zero(hop.from ^ hop.to)) / 8; }

double latency_ns(const Hop& hop, const Mesh& mesh) {
  const std::size_t a = axis_of(hop);
  return passes(axis_code(hop.from, a), axis_code(hop.to, a)) * (mesh.axes[a].size - 1) * mesh.axes[a].latency_ns;
}

Ways::Ways(const ProgramTensor& tensor, const Mesh& mesh, AxisCode partial)
    : Ways(tensor, mesh, partial, std::vector<double>(mesh.axes.size(), 1), false) {}

Ways::Ways(const ProgramTensor& tensor, const Mesh& mesh, AxisCode partial, const std::vector<double>& prices,
           bool shared)
    : codes_(all_codes(tensor, mesh.axes.size(), partial)) {
  for (const Code code : codes_) index_.emplace(code, static_cast<std::int32_t>(index_.size()));
  next_.resize(codes_.size());
  labels_.resize(codes_.size());
  for (const Hop& step : steps_within(codes_, tensor, mesh))
    next_[static_cast<std::size_t>(index_.at(step.from))].emplace_back(
        index_.at(step.to),
        prices[axis_of(step)] * (shared ? std::max(0.0, step.ns - latency_ns(step, mesh)) : step.ns));
}

const std::vector<Ways::Label>& Ways::labels_from(std::int32_t from) const {
  auto& labels = labels_[static_cast<std::size_t>(from)];
  if (!labels.empty()) return labels;
  labels.assign(codes_.size(), {kNever, -1});
  labels[static_cast<std::size_t>(from)] = {0, -1};
  using Item = std::pair<double, std::int32_t>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> open;
  open.emplace(0.0, from);
  while (!open.empty()) {
    const auto [ns, at] = open.top();
    open.pop();
    if (ns > labels[static_cast<std::size_t>(at)].ns) continue;
    for (const auto& [to, step] : next_[static_cast<std::size_t>(at)]) {
      if (ns + step >= labels[static_cast<std::size_t>(to)].ns) continue;
      labels[static_cast<std::size_t>(to)] = {ns + step, at};
      open.emplace(ns + step, to);
    }
  }
  return labels;
}

Way Ways::between(Code from, Code to) const {
  const auto source = index_.find(from), target = index_.find(to);
  if (source == index_.end() || target == index_.end()) return {kNever, {}};
  const auto& labels = labels_from(source->second);
  Way way{labels[static_cast<std::size_t>(target->second)].ns, {}};
  if (way.ns == kNever) return way;
  for (std::int32_t at = target->second, before = 0; at != source->second; at = before) {
    const Label& label = labels[static_cast<std::size_t>(at)];
    before = label.before;
    way.hops.push_back({codes_[static_cast<std::size_t>(before)], codes_[static_cast<std::size_t>(at)],
                        label.ns - labels[static_cast<std::size_t>(before)].ns});
  }
  std::reverse(way.hops.begin(), way.hops.end());
  return way;
}

std::vector<Hop> Ways::steps_between(const std::vector<Code>& from, const std::vector<Code>& to) const {
  std::vector<Hop> steps;
  std::set<std::pair<std::int32_t, std::int32_t>> taken;
  for (const Code source : from) {
    const auto first = index_.find(source);
    if (first == index_.end()) continue;
    const auto& labels = labels_from(first->second);
    std::vector<char> walked(codes_.size(), 0);  // the ways from one placement are a tree
    for (const Code target : to) {
      const auto last = index_.find(target);
      if (last == index_.end()) continue;
      for (std::int32_t at = last->second;
           walked[static_cast<std::size_t>(at)] == 0 && labels[static_cast<std::size_t>(at)].before >= 0;) {
        walked[static_cast<std::size_t>(at)] = 1;
        const auto [ns, before] = labels[static_cast<std::size_t>(at)];
        if (taken.emplace(before, at).second)
          steps.push_back({codes_[static_cast<std::size_t>(before)], codes_[static_cast<std::size_t>(at)],
                           ns - labels[static_cast<std::size_t>(before)].ns});
        at = before;
      }
    }
  }
  return steps;
}

}  // namespace stowage
