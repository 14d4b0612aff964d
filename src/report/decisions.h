// What each decision of a plan saved and cost, by undoing it alone.
//
//   b      ████████············████        recomputed or swapped: without it, b would lie there over the gap, what its chain makes
//   chain              ░░░░                on the way would not, and what the chain reads would go after its other uses
//   live   ▁▂▄▆▆▅▅▄▃▃▄▅▆▆▄▂▁               saved = the peak of live bytes then, less the peak now
//
// So `saved` is exact for one decision and all others as they are; several that hold down one peak can each save all of
// it, or, when peaks are equally high elsewhere, nothing alone. The stages undo whole kinds of decisions, one kind
// after another.
//
// A chain is what runs again for one purpose: reruns that feed each other. Costs are those of the time model: what runs
// again costs itself, a swap costs what is waited for its copies, so that costs sum to what the step takes longer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "budget/timing.h"
#include "report/curve.h"
#include "report/pieces.h"

namespace stowage::report {

struct Decision {
  enum class Kind : std::uint8_t { kRecompute, kSwap, kInPlaceReuse, kMove };
  Kind kind = Kind::kRecompute;
  std::int32_t from = 0;  // steps of the plan that it spans
  std::int32_t to = 0;
  std::int64_t bytes = 0;                   // of the buffers, padded
  std::optional<std::int64_t> saved_bytes;  // nothing: not computed
  std::int64_t cost_ns = 0;
  std::vector<BufferId> buffers;    // that are away, or lie over another
  std::vector<OpId> ops;            // that run again, or elsewhere
  std::vector<std::int32_t> steps;  // that would not be there without it: reruns, or the copy in
};

// Peaks of live bytes on the way from the program to the plan.
struct Stages {
  std::int64_t program = 0;         // program order
  std::int64_t order = 0;           // the plan's order, nothing run again
  std::int64_t recompute = 0;       // with what it runs again
  std::int64_t swap = 0;            // with what it swaps
  std::int64_t in_place_reuse = 0;  // with in-place reuse: the plan's peak
};

struct Decisions {
  std::vector<Decision> list;
  Stages stages;
};

// The plan must be valid for the graph; `curve` is that of plan_rects(). O((V + E + S) log S) besides at most
// `move_work` for moves.
Decisions decisions(const Graph& graph, const Plan& plan, const Pieces& pieces, const Curve& curve,
                    const budget::Timing& timing);

}  // namespace stowage::report
