// How each content of each buffer is made: what an op must find to run, again or for the first time.
//
//   op 3  conv   creates y            makers of y:   version 1   op 3
//   op 4  relu_  writes y                            version 2   op 4 (needs y at version 1)
//   op 5  pool   reads y              op 5 needs y at version 2
//
// To have y at version 2 again, ops 3 and 4 run again, in this order, on a fresh placement (docs/formats.md, section 2,
// rule 2). An op cannot run again when it acts outside its buffers or does not repeat its bits (Op::once), when it writes a
// resident, or when a resident that it reads has been written since.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "budget/reuse_table.h"
#include "graph/analysed_graph.h"

namespace stowage::budget {

struct Need {
  std::int32_t buffer;
  std::int32_t version;  // that the op sees
  bool written = false;  // the op leaves the next version
};

struct Recipes {
  // `graph` must outlive this.
  explicit Recipes(const AnalysedGraph& graph, bool in_place_reuse = true);

  const AnalysedGraph* analysed;
  const Graph* graph;
  std::int32_t ops = 0;
  std::int32_t buffers = 0;
  // Per op.
  std::vector<std::int64_t> cost;  // ns
  // Bytes on top of what was live before, at the heaviest tick, without in-place reuse
  std::span<const std::int64_t> added;
  std::vector<std::vector<Need>> needs;            // planned buffers read or written, at the version that the op sees
  std::vector<std::vector<std::int32_t>> creates;  // planned buffers
  std::vector<char> repeatable;                    // may run again while no op of ends[op] has run
  std::vector<std::vector<std::int32_t>> ends;     // ops whose first run spoils a resident that it reads
  ReuseTable reuse;
  // Per buffer; residents have no makers.
  std::span<const std::int64_t> bytes;  // padded
  std::vector<char> returned;
  std::vector<std::vector<std::int32_t>> makers;  // makers[b][v - 1] leaves version v
};

}  // namespace stowage::budget
