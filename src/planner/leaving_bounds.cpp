#include "planner/leaving_bounds.h"

#include <algorithm>
#include <vector>

#include "base/capped.h"
#include "graph/analysed_graph.h"
#include "planner/away_graph.h"

namespace stowage {
namespace {

// Each once.
std::vector<BufferId> touched_by(const Op& op) {
  std::vector<BufferId> all = op.reads;
  all.insert(all.end(), op.writes.begin(), op.writes.end());
  all.insert(all.end(), op.creates.begin(), op.creates.end());
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return all;
}

// Residents that may leave. Who is touched by no op need not be fetched, and then takes nothing.
struct MayLeave {
  std::vector<BufferId> touched;
  IdVector<BufferId, char> written;
  std::int64_t untouched_bytes = 0;
};

MayLeave may_leave(const Graph& graph) {
  MayLeave result;
  result.written = IdVector<BufferId, char>(graph.buffers.size(), 0);
  IdVector<BufferId, char> touched(graph.buffers.size(), 0);
  for (const Op& op : graph.ops) {
    for (const BufferId b : touched_by(op)) touched[b] = 1;
    for (const BufferId b : op.writes) result.written[b] = 1;
  }
  for (std::size_t i = 0; i < graph.buffers.size(); ++i) {
    const BufferId b(i);
    if (!graph.buffer(b).leaves) continue;
    if (touched[b] != 0)
      result.touched.push_back(b);
    else
      result.untouched_bytes += graph.buffer(b).bytes;
  }
  return result;
}

// Bytes that the op needs on the device, without those that may leave.
std::int64_t own_bytes(const AnalysedGraph& sent, OpId op, const IdVector<BufferId, char>& leaves) {
  std::int64_t bytes = sent.run_bytes[op];
  for (const BufferId b : touched_by(sent.graph.op(op)))
    if (leaves[b] != 0) bytes -= sent.bytes[b];
  return bytes;
}

// The most bytes that may stay beside `own` at each op, of `leave`: with one that is away, its place is needed, too, where
// it is touched. `place`: that place with the op, per resident.
std::int64_t most_that_stay(const Graph& graph, const std::vector<BufferId>& leave, std::int64_t room, std::int64_t own,
                            const IdVector<BufferId, std::int64_t>& place) {
  std::vector<BufferId> by_place = leave;
  std::ranges::sort(by_place, {}, [&](BufferId b) { return place[b]; });
  std::int64_t stay = 0;
  for (const BufferId b : leave) stay += graph.buffer(b).bytes;
  if (stay <= room - own) return stay;
  for (const BufferId b : by_place) {  // all before it are away, too
    stay -= graph.buffer(b).bytes;
    const std::int64_t left = room - std::max(own, place[b]);
    if (stay <= left) return left;
  }
  return 0;
}

}  // namespace

std::int64_t bound_with_leaving(const Graph& graph) {
  const MayLeave leave = may_leave(graph);
  const AwayGraph sent = send_away(graph, leave.touched, {1.0});
  const AnalysedGraph analysed(sent.graph);
  std::int64_t most = 0, least_padding = 0;
  for (const std::int64_t bytes : analysed.run_bytes) most = std::max(most, bytes);
  // One that stays takes its bytes, not padded
  for (const BufferId b : leave.touched) least_padding += graph.padded(graph.buffer(b).bytes) - graph.buffer(b).bytes;
  return resident_bytes(sent.graph) - leave.untouched_bytes +
         std::max({std::int64_t{0}, most - least_padding, analysed.returned_bytes});
}

std::int64_t time_bound_with_leaving(const Graph& graph, std::int64_t budget_bytes, budget::Link link) {
  const MayLeave leave = may_leave(graph);
  const AwayGraph sent = send_away(graph, leave.touched, link);
  const AnalysedGraph analysed(sent.graph);
  IdVector<BufferId, char> leaves(sent.graph.buffers.size(), 0);
  for (const BufferId b : leave.touched) leaves[b] = 1;
  std::int64_t own = analysed.returned_bytes, program_ns = 0;
  IdVector<BufferId, std::int64_t> place(sent.graph.buffers.size(), 0);
  for (std::size_t k = 0; k < sent.graph.ops.size(); ++k) {
    if (sent.origin[k].kind != AwayGraph::Kind::kRun) continue;
    program_ns = capped_sum(program_ns, sent.graph.ops[k].cost_ns);
    const std::int64_t bytes = own_bytes(analysed, OpId(k), leaves);
    own = std::max(own, bytes);
    for (const BufferId b : touched_by(sent.graph.ops[k]))
      if (leaves[b] != 0) place[b] = std::max(place[b], bytes + analysed.bytes[b]);
  }
  const std::int64_t room = budget_bytes - (resident_bytes(sent.graph) - leave.untouched_bytes);
  const std::int64_t stay = most_that_stay(graph, leave.touched, room, own, place);
  std::int64_t fetched = -stay, stored = -stay;
  for (const BufferId b : leave.touched) {
    fetched += graph.buffer(b).bytes;
    stored += leave.written[b] != 0 ? graph.buffer(b).bytes : 0;
  }
  const auto lane = [&](std::int64_t bytes) { return bytes > 0 && link.there() ? link.duration(bytes) : 0; };
  return std::max({program_ns, lane(fetched), lane(stored)});
}

}  // namespace stowage
