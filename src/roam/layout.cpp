#include "roam/layout.h"

#include <algorithm>

#include "layout/instance.h"
#include "roam/concatenate.h"
#include "solver/highs_library.h"

namespace stowage::roam {
namespace {

bool is_activation(const LayoutItem& item, std::int64_t loss) { return item.lower < loss && item.upper > loss; }

std::size_t owner(const LayoutItem& item, std::int64_t loss, const std::vector<TimedShell>& shells) {
  const bool forward = item.upper <= loss;
  const std::int64_t when = item.lower >= loss ? item.lower : item.upper - 1;
  for (std::size_t s = 0; s < shells.size(); ++s) {
    const TimedShell& shell = shells[s];
    const bool inside = forward ? when >= shell.forward_from && when < shell.forward_to
                                : when >= shell.backward_from && when < shell.backward_to;
    if (inside) return s;
  }
  return shells.size() - 1;  // in the core, on either side of the loss
}

}  // namespace

LayoutResult lay_out(const std::vector<LayoutItem>& items, std::int64_t align, std::int64_t loss,
                     const std::vector<TimedShell>& shells, const RoamOptions& options, const std::string& library,
                     const std::function<bool()>& should_stop, RoamStats& stats) {
  if (options.layout_ilp) load_highs(library);
  const LayoutInstance instance = make_instance(items, align);
  LayoutResult result;
  result.offsets.assign(items.size(), 0);
  result.outcome = Outcome::kOptimal;
  if (instance.rects.empty()) return result;

  std::vector<std::vector<std::int32_t>> leaves(std::max<std::size_t>(shells.size(), 1));
  std::vector<char> activation;
  for (std::size_t r = 0; r < instance.rects.size(); ++r) {
    const LayoutItem& item = items[instance.item[r]];
    activation.push_back(is_activation(item, loss));
    leaves[shells.empty() ? 0 : owner(item, loss, shells)].push_back(static_cast<std::int32_t>(r));
  }
  IlpLimits limits;
  limits.nodes = options.ilp_nodes;
  limits.iterations = options.ilp_iterations;
  limits.should_stop = should_stop;
  limits.library = library;
  const Offsets placed = concatenate(instance.rects, activation, leaves, options, limits, stats);

  for (std::size_t r = 0; r < instance.rects.size(); ++r) {
    const auto item = static_cast<std::size_t>(instance.item[r]);
    result.offsets[item] = placed.at[r];
    result.height_bytes = std::max(result.height_bytes, placed.at[r] + items[item].bytes);
  }
  result.lower_bound_bytes = std::min(instance.bound - instance.slack, result.height_bytes);
  result.outcome = result.height_bytes == result.lower_bound_bytes ? Outcome::kOptimal : Outcome::kFeasible;
  return result;
}

}  // namespace stowage::roam
