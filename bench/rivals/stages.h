// A step in a fixed order, as stages: what every op needs and makes, and until when running it again can be of use.
//
//   order      conv   relu_   pool   …   pool_backward
//   contents   y/1 ──▶ y/2 ──────▶ read ────▶ read          y/1 is gone when relu_ has run: a buffer has one content at a time
//   stage t    some of the ops before t again, in order, then op t for the first time
//
// O(uses · log) time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stowage/graph.h"

namespace stowage::rivals {

// A buffer as one op left it. Ops are positions in the order.
struct Content {
  std::int32_t buffer = 0;
  std::int32_t maker = 0;
  std::int32_t overwriter = -1;     // writes the next content over it; -1: none
  std::vector<std::int32_t> users;  // readers and overwriter, increasing
  // Having it at the begin of a later stage is of no use; one after the last: the end needs it
  std::int32_t last_stage = 0;
};

struct Stages {
  // `order` holds every op once. Throws Error when it breaks a dependency.
  Stages(const Graph& graph, std::span<const OpId> order);

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(order.size()); }

  const Graph* graph;
  std::vector<OpId> order;
  std::vector<Content> contents;
  std::vector<std::vector<std::int32_t>> needs, makes;  // per position: contents
  std::vector<std::vector<std::int32_t>> of_buffer;     // contents; none for residents
  // Per position: the last stage in which it may run, and to some use
  std::vector<std::int32_t> last_stage;
};

}  // namespace stowage::rivals
