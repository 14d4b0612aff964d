// Fitting a byte limit: the step of least predicted time whose laid-out plan fits an arena of a given size.
//
//   base orders ─▶ cover (drop, recompute, swap) ─▶ trim ─▶ schedule ─▶ layout ─▶ fits? ── yes: improve.h
//                       ▲   by each of several rules          ▲            │ no: the next fastest of the pool (small graphs)
//                       │   (portfolio.h)                     └────────────┤
//                       └───── a lower limit for live bytes ◀──────────────┘ no: by so much too high
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "budget/schedule.h"

namespace stowage::budget {

// A graph of at most so many ops is small: more than one sequence of a limit is laid out, and all rungs are looked at.
inline constexpr std::int32_t kSmallOps = 300;

struct FitOptions {
  Link link;
  // Of the first layout, a quarter in small graphs; each limit and each further sequence halves it
  std::int64_t layout_node_budget = 60'000;
  std::uint64_t seed = 0;
  std::int64_t work = 600'000'000;          // for one limit of live bytes; about a ns a unit
  std::int64_t improve_work = 400'000'000;  // of improve_fit(), less in small graphs
  std::int64_t bound_work = 1'000'000'000;  // for the bounds of all capacities
  std::int64_t* spent = nullptr;            // what is used is added to it
  std::int64_t least_ns = 0;                // proven: no plan within the capacity is faster
  std::function<bool()> should_stop;        // outer stop; empty: never
};

struct Fitted {
  Schedule schedule;
  LayoutResult layout;  // of schedule.timeline.items
  Sequence sequence;
  std::int64_t limit = 0;  // of its live bytes
  double lane_price = 0;   // that led to it
};

// None: no plan was found.
std::optional<Fitted> fit_budget(const Recipes& recipes, std::span<const std::vector<OpId>> orders,
                                 std::int64_t capacity, const FitOptions& options);

// Ruin and recreate (improve.h) from a plan for the capacity, which stays within it.
void improve_fit(const Recipes& recipes, Fitted& fitted, std::int64_t capacity, const FitOptions& options);

}  // namespace stowage::budget
