#include "planner/away_graph.h"

#include <algorithm>
#include <utility>

namespace stowage {
namespace {

class Sender {
 public:
  Sender(const Graph& graph, const std::vector<BufferId>& away, budget::Link link)
      : from_(graph), link_(link), uses_(graph.buffers.size()), token_(graph.buffers.size()), away_(away) {}

  AwayGraph run() {
    Graph& to = out_.graph;
    to.name = from_.name;
    to.align = from_.align;
    to.buffers = from_.buffers;
    for (Buffer& buffer : to.buffers) buffer.leaves = false;
    for (const BufferId b : away_) to.buffers[b.index()].resident = false;
    find_uses();
    add_tokens();
    IdVector<OpId, OpId> now;  // where each op is
    for (std::size_t k = 0; k < from_.ops.size(); ++k) {
      for (const BufferId b : away_)
        if (uses_[b].first == OpId(k)) add_fetch(b);
      Op op = from_.ops[k];
      for (OpId& before : op.after) before = now[before];
      for (const BufferId b : from_.ops[k].writes)
        if (token_[b].valid()) op.writes.push_back(token_[b]);
      now.push_back(OpId(to.ops.size()));
      add(std::move(op), {AwayGraph::Kind::kRun, OpId(k), {}});
      for (const BufferId b : away_)
        if (uses_[b].last == OpId(k) && token_[b].valid()) add_store(b);
    }
    validate(to);
    to.sha256 = from_.sha256;  // plans of both name the graph that they are for; this one is seen by nobody else
    return std::move(out_);
  }

 private:
  struct Uses {
    OpId first, last;
    bool written = false;
  };

  void find_uses() {
    for (std::size_t k = 0; k < from_.ops.size(); ++k) {
      const auto use = [&](BufferId b, bool writes) {
        Uses& uses = uses_[b];
        if (!uses.first.valid()) uses.first = OpId(k);
        uses.last = OpId(k);
        uses.written |= writes;
      };
      for (const BufferId b : from_.ops[k].reads) use(b, false);
      for (const BufferId b : from_.ops[k].writes) use(b, true);
    }
  }

  void add_tokens() {
    for (const BufferId b : away_) {
      if (!uses_[b].written) continue;
      Buffer token;
      token.name = from_.buffer(b).name + " token";
      token.kind = from_.buffer(b).kind;
      token.resident = true;
      token_[b] = BufferId(out_.graph.buffers.size());
      out_.graph.buffers.push_back(std::move(token));
    }
  }

  void add_fetch(BufferId b) {
    Op op;
    op.name = "fetch " + from_.buffer(b).name;
    op.target = "fetch";
    op.creates = {b};
    if (token_[b].valid()) op.reads = {token_[b]};
    op.cost_ns = link_.duration(from_.buffer(b).bytes);
    add(std::move(op), {AwayGraph::Kind::kFetch, {}, b});
  }

  void add_store(BufferId b) {
    Op op;
    op.name = "store " + from_.buffer(b).name;
    op.target = "store";
    op.reads = {b};
    op.effect = false;
    add(std::move(op), {AwayGraph::Kind::kStore, {}, b});
  }

  void add(Op op, AwayGraph::Origin origin) {
    out_.graph.ops.push_back(std::move(op));
    out_.origin.push_back(origin);
  }

  const Graph& from_;
  budget::Link link_;
  IdVector<BufferId, Uses> uses_;
  IdVector<BufferId, BufferId> token_;  // of those that are written
  const std::vector<BufferId>& away_;
  AwayGraph out_;
};

}  // namespace

AwayGraph send_away(const Graph& graph, const std::vector<BufferId>& away, budget::Link link) {
  return Sender(graph, away, link).run();
}

}  // namespace stowage
