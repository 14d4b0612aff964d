// A sequence that keeps a limit of live bytes, and how long it takes.
#pragma once

#include <cstdint>
#include <vector>

#include "budget/lanes.h"
#include "budget/sequence.h"

namespace stowage::budget {

struct Attempt {
  Sequence sequence;
  std::int64_t ns = 0;
};

// Undoes what is superfluous, times the copies, and measures. The live bytes stay within `limit`.
void polish(const Recipes& recipes, Attempt& now, std::int64_t limit, Link link, std::int64_t& work);

// The fastest that were found, fastest first; of equally fast ones the first.
class Pool {
 public:
  void add(Attempt attempt);
  [[nodiscard]] bool empty() const { return best_.empty(); }
  [[nodiscard]] std::size_t size() const { return best_.size(); }
  const Attempt& operator[](std::size_t i) const { return best_[i]; }

 private:
  std::vector<Attempt> best_;
};

}  // namespace stowage::budget
