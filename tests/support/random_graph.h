// Random graphs that are valid by construction, with every feature of the format.
#pragma once

#include <random>

#include "stowage/graph.h"

namespace stowage::testing {

struct RandomGraphOptions {
  int ops = 10;
  int residents = 3;
  std::int64_t align = 4;
  std::int64_t most_bytes = 40;
  std::int64_t most_cost_ns = 1000;
  bool in_place = true;  // writes
  int most_writes = 3;   // of one op
  bool insides = true;   // ticks, scratch, born, reuse pairs
  bool ordering = true;  // rng, effect, once, after
  int leaving = 0;       // percent of residents that may wait on the host
  bool targets = false;  // of training: those that explain's rules look for; else all alike
};

// Validated and sealed. The same generator state gives the same graph.
Graph random_graph(std::mt19937_64& random, const RandomGraphOptions& options);

// A number in [low, high], the same on every platform (unlike std::uniform_int_distribution).
std::int64_t draw(std::mt19937_64& random, std::int64_t low, std::int64_t high);
bool chance(std::mt19937_64& random, int percent);

}  // namespace stowage::testing
