// A training step in small: layers forward, a loss, layers backward, and an optimizer step for each weight at the end
// of the program.
#pragma once

#include <cstdint>

#include "stowage/graph.h"

namespace stowage::testing {

struct TrainingGraphOptions {
  int layers = 4;
  std::int64_t activation_bytes = 1024;
  std::int64_t weight_bytes = 4096;
  int temporaries = 2;     // of each optimizer step, as large as the weight
  bool recompute = false;  // backward makes each layer's activation anew from its input
};

// Validated and sealed.
Graph training_graph(const TrainingGraphOptions& options);

}  // namespace stowage::testing
