// Small graphs and plans, written as tables in tests.
#pragma once

#include <initializer_list>
#include <string>

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::testing {

// Adds buffers and ops; ids are plain ints, so that a test reads like the file:
//   GraphBuilder g;  g.resident(100);  g.buffer(64);  g.op({0}, {}, {1});
class GraphBuilder {
 public:
  explicit GraphBuilder(std::int64_t align = 1);

  int resident(std::int64_t bytes);
  int buffer(std::int64_t bytes);    // not resident, not returned
  int returned(std::int64_t bytes);  // not resident
  Op& op(std::initializer_list<int> reads, std::initializer_list<int> writes, std::initializer_list<int> creates);

  // The validated, sealed graph.
  [[nodiscard]] Graph build() const;

 private:
  Graph graph_;
};

Step run(int op);
Step swap_out(int buffer, int until);
Step swap_in(int buffer, int until);
Placement place(int buffer, int from, int to, std::int64_t offset);

}  // namespace stowage::testing
