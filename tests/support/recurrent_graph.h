// A training step of an unrolled recurrent net: cells over time steps and layers, backward through time, an optimizer
// in a Python loop. Thousands of small ops, most of which may lay their result over an input.
#pragma once

#include <cstdint>

#include "stowage/graph.h"

namespace stowage::testing {

struct RecurrentOptions {
  int gates = 4;  // 1: plain, 3: GRU, 4: LSTM, which carries a second state
  int layers = 2;
  int steps = 20;
  std::int64_t state_bytes = 1632;  // of one state of one layer
  bool each_output = true;          // every time step is read out; else the last alone
  int temporaries = 3;              // of each update, as large as the weight
};

// Validated and sealed.
Graph recurrent_graph(const RecurrentOptions& options);

}  // namespace stowage::testing
