// Which op must wait for which: dependencies from program order.
//
//   op 0 creates x      0 ──RAW──▶ 1      a read or write of x comes after the latest earlier write (or the creation) of x;
//   op 1 reads x        0 ──RAW──▶ 2      a write of x comes after every read since the write before it (WAR),
//   op 2 writes x       1 ──WAR──▶ 2      so each op meets the version of x that program order shows it.
//   op 3 reads x        2 ──RAW──▶ 3
//
// Besides: rng ops form a chain, effect ops form a chain, and `after` is taken as it stands. All edges point from a
// smaller to a larger op id, so program order is a topological order. Edges are deduplicated, not transitively reduced.
// O(V + E log E) time.
#pragma once

#include "base/csr.h"
#include "stowage/graph.h"

namespace stowage {

struct Dependencies {
  Csr preds;  // one row per op, increasing
  Csr succs;
};

Dependencies dependencies(const Graph& graph);

// Those that the first runs of every valid plan keep, recomputation and swapping included: a version that was
// overwritten can be had again (or wait on the host), so a reader need not come before the next writer, unless the
// buffer is resident.
Dependencies content_dependencies(const Graph& graph);

}  // namespace stowage
