#include "order/min_cut.h"

#include <limits>

#include "order/max_flow.h"

namespace stowage {
namespace {

constexpr std::int32_t kSource = 0;  // the ancestors of v
constexpr std::int32_t kSink = 1;    // v and its descendants

class CutNetwork {
 public:
  CutNetwork(const OrderProblem& p, std::int32_t v, const CutPins& pins) : p_(p), node_(p.ops, -1), flow_(2) {
    if (v >= 0) {
      node_[v] = kSink;
      mark(p.preds, {v}, kSource);
      mark(p.succs, {v}, kSink);
    }
    for (const std::int32_t op : pins.in) pin(op, kSource);
    mark(p.preds, pins.in, kSource);
    for (const std::int32_t op : pins.out) pin(op, kSink);
    mark(p.succs, pins.out, kSink);
    if (contradiction_) return;
    for (std::int32_t op = 0; op < p.ops; ++op)
      if (node_[op] < 0) node_[op] = flow_.add_node();
    for (std::int32_t op = 0; op < p.ops; ++op)
      if (node_[op] > kSink)
        for (const std::int32_t q : p.preds[op])
          if (node_[q] > kSink) flow_.add_arc(node_[op], node_[q], FlowNetwork::kInfinite);
    fixed_ = p.base;
    for (std::size_t w = 0; w < p.weight.size(); ++w) add_weight(w);
    if (v < 0) return;
    for (const std::int32_t w : p.opens[v])
      if (!p.open_at_start[w]) fixed_ += p.weight[w];
    fixed_ += p.extra[v];
  }

  Cut solve(CutSide side, std::int64_t& work) {
    Cut cut;
    if (contradiction_) {
      cut.step_bytes = std::numeric_limits<std::int64_t>::max();
      return cut;
    }
    cut.step_bytes = fixed_ + flow_.maximize(kSource, kSink, work);
    if (work <= 0) return cut;
    const std::vector<char> in =
        side == CutSide::kSmallest ? flow_.source_side(kSource) : flow_.largest_source_side(kSink);
    cut.before.resize(p_.ops);
    for (std::int32_t op = 0; op < p_.ops; ++op) cut.before[op] = in[node_[op]];
    return cut;
  }

 private:
  void pin(std::int32_t op, std::int32_t as) {
    contradiction_ |= node_[op] >= 0 && node_[op] != as;
    node_[op] = as;
  }

  // Everything that the arcs lead to from `from` is on side `as` too.
  void mark(const Csr& towards, std::vector<std::int32_t> from, std::int32_t as) {
    while (!from.empty()) {
      const std::int32_t op = from.back();
      from.pop_back();
      for (const std::int32_t q : towards[op]) {
        if (node_[q] < 0) from.push_back(q);
        contradiction_ |= node_[q] >= 0 && node_[q] != as;
        node_[q] = as;
      }
    }
  }

  void add_weight(std::size_t w) {
    const std::int32_t from = p_.open_at_start[w] ? kSource : node_[p_.openers[w][0]];
    if (from == kSink) return;
    bool held = p_.open_at_end[w] != 0, open_question = false;
    for (const std::int32_t c : p_.closers[w]) {
      held |= node_[c] == kSink;
      open_question |= node_[c] > kSink;
    }
    if (held && from == kSource) {
      fixed_ += p_.weight[w];
    } else if (held) {
      flow_.add_arc(from, kSink, p_.weight[w]);
    } else if (open_question) {
      const std::int32_t z = flow_.add_node();
      flow_.add_arc(from, z, p_.weight[w]);
      for (const std::int32_t c : p_.closers[w])
        if (node_[c] > kSink) flow_.add_arc(z, node_[c], FlowNetwork::kInfinite);
    }
  }

  const OrderProblem& p_;
  std::vector<std::int32_t> node_;
  FlowNetwork flow_;
  std::int64_t fixed_ = 0;
  bool contradiction_ = false;
};

}  // namespace

Cut min_cut(const OrderProblem& problem, std::int32_t v, CutSide side, std::int64_t& work, const CutPins& pins) {
  work -= 10 * size_of(problem);
  return CutNetwork(problem, v, pins).solve(side, work);
}

}  // namespace stowage
