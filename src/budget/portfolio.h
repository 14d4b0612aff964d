// The first sequences of a search: every order covered by rules that differ in what copies are worth.
//
// What a ns of lane time is worth depends on how much there is to copy, and how fast: too cheap, and copies that could
// wait for a better use fill the lanes, so that later ones are late; too dear, and the lanes stand idle. It is looked for by
// doubling and halving:
//
//   price   0.01   0.02   0.05   0.1    0.2        each cover is one evaluation; around the best of one order the next one's
//   ns       109    108    107   105    108        search begins. And none at all: recomputation alone.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "budget/attempt.h"
#include "budget/cover.h"
#include "stowage/ids.h"

namespace stowage::budget {

struct PortfolioOptions {
  Link link;
  Link covering;  // whose prices moves are chosen by
  std::int64_t limit = 0;
  std::int64_t work = 0;  // about a ns a unit
};

class Portfolio {
 public:
  Portfolio(const Recipes& recipes, const PortfolioOptions& options)
      : recipes_(recipes),
        options_(options),
        program_ns_(std::accumulate(recipes.cost.begin(), recipes.cost.end(), std::int64_t{0})),
        left_(options.work) {}

  void add_order(const std::vector<OpId>& order, bool swap);
  [[nodiscard]] const Pool& pool() const { return pool_; }
  // Of the best rule so far.
  [[nodiscard]] double lane_price() const { return price_of(exponent_); }
  [[nodiscard]] std::int64_t spent() const { return options_.work - left_; }

 private:
  static double price_of(int exponent);
  // Its time; kNone: it does not fit.
  std::int64_t cover_by(const std::vector<OpId>& order, const CoverRule& rule);

  const Recipes& recipes_;
  PortfolioOptions options_;
  std::int64_t program_ns_;
  std::int64_t left_;
  int exponent_ = 0;
  bool first_ = true;
  Pool pool_;
};

}  // namespace stowage::budget
