// How the parts of the checker say that a rule is broken, and how they name things.
#pragma once

#include <string>

#include "base/concat.h"
#include "base/quote.h"
#include "stowage/graph.h"

namespace stowage::checker {

// Thrown inside the checker only; check() turns it into a report.
struct Violation {
  int rule;
  std::string message;
};

template <class... Parts>
[[noreturn]] void fail(int rule, const Parts&... parts) {
  throw Violation{rule, concat("rule ", rule, ": ", parts...)};
}

inline std::string describe(const Graph& graph, OpId id) {
  return concat("op ", id.value, " ", quote(graph.op(id).name));
}
inline std::string describe(const Graph& graph, BufferId id) {
  return concat("buffer ", id.value, " ", quote(graph.buffer(id).name));
}

inline bool in_range(const Graph& graph, OpId id) { return id.valid() && id.index() < graph.ops.size(); }
inline bool in_range(const Graph& graph, BufferId id) { return id.valid() && id.index() < graph.buffers.size(); }

}  // namespace stowage::checker
