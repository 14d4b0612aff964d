// A lower bound on the step time of every plan within a byte limit: any order, any recomputation, any swapping.
//
//   before v's first run        at v                     after v's first run
//   R have run: anc(v), and┌─ C bytes, of which ─┐       all others run, desc(v) among them, and need contents that R made:
//   perhaps ops beside them│ v itself takes m(v) │         kept at v      its bytes lie in C - m(v)
//                          └─────────────────────┘         came back      its bytes went over the link after v
//                                                          made again     its maker runs again, and so on for what that needs
//
// For a price of x ns per byte kept, the cheapest way to serve all contents is a minimum cut g(x), over all R that an
// order allows:
//
//   s ──∞──▶ k not in R ──∞──▶ b needed ──x·bytes──▶ b not kept ──∞──▶ maker again ──cost──▶ maker in R ──∞──▶ t
//
//            k in desc(v): from s                         cut: it is kept         cut: it runs again (∞ for what cannot);
//                                                                                 ──∞──▶ needed by it …
//
// A maker of anc(v) is in R for certain: its last arc is there. That of an op beside v is not: with the maker outside of R
// nothing is cut. An op outside of R keeps what depends on it outside, too. So every plan takes
// T >= P + g(x) - x · (C - m(v) + what the link brings back in T), P the sum of all costs (Lagrange; a knapsack with
// closures). Contents that came back left before v and returned after it, each way at the link's bandwidth, hence at
// most bandwidth · min(T - cost(v + desc(v)), T - cost(anc(v)), T / 2) bytes: what is before v and what is after it make
// up T. Solved for T; the largest over several v and x is the bound. Cuts do not depend on C: each is a line that bounds
// all limits. One cut: a maximum flow on all ops but desc(v).
#pragma once

#include <cstdint>
#include <vector>

#include "budget/lanes.h"
#include "budget/recipes.h"
#include "graph/dependencies.h"

namespace stowage::budget {

class TimeBound {
 public:
  // `work`: about a ns a unit, for all cuts that will ever be made.
  TimeBound(const Recipes& recipes, Link link, std::int64_t work);

  // No plan with an arena of at most `capacity` has a smaller step time. Never rises with the capacity.
  std::int64_t at(std::int64_t capacity);
  // As at(), by the cuts made so far.
  [[nodiscard]] std::int64_t known(std::int64_t capacity) const;
  // No plan has a smaller arena. More than what one op needs only when there is no link: contents that cannot be made
  // again stay.
  std::int64_t least_capacity();

 private:
  struct Line {  // T >= (constant - price · capacity) / divisor
    double constant, price, divisor;
    [[nodiscard]] double at(std::int64_t capacity) const {
      return (constant - price * static_cast<double>(capacity)) / divisor;
    }
  };
  struct Pivot {
    std::int32_t op;
    std::int64_t own_bytes;      // m(v)
    std::int64_t side_ns;        // the longer of what must run before and from v on
    std::vector<char> relation;  // per op: kBefore, kAfter or neither
  };
  struct Cut {
    double cost_ns = 0;  // of what is made again in the cheapest way; less when work ran out
    std::int64_t kept_bytes = 0;
  };
  Cut cut(const Pivot& pivot, double price, double cost_factor = 1);
  void search(const Pivot& pivot, std::int64_t capacity);
  // Positive while a higher price per byte raises the bound.
  [[nodiscard]] double slope(const Pivot& pivot, const Cut& cut, std::int64_t capacity) const;
  Pivot pivot(std::int32_t op) const;

  const Recipes& recipes_;
  std::int64_t work_;
  std::int64_t program_ns_ = 0;
  Dependencies deps_;
  double bandwidth_ = 0;                      // padded bytes that a lane moves in a ns, at most
  double dearest_ = 0;                        // the highest price worth asking, ns a byte
  std::vector<char> once_;                    // per op: never runs again
  std::vector<std::int32_t> version_wanted_;  // per buffer: the least version that anyone but its makers needs
  std::vector<Pivot> pivots_;
  std::vector<Line> lines_;
};

}  // namespace stowage::budget
