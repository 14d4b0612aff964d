// Maximum flow and minimum cut: Dinic's algorithm on a small value of a network.
//
//        ┌─3─▶ a ─2─┐
//    s ──┤          ├──▶ t        max flow 4 = capacity of the cheapest set of arcs that parts s from t
//        └─2─▶ b ─∞─┘
//
// Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970. O(V² E); on the
// networks of order/min_cut.h a few phases. Paths are kept on an explicit stack, since chains of ops make them
// thousands of arcs long.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace stowage {

class FlowNetwork {
 public:
  static constexpr std::int64_t kInfinite = std::numeric_limits<std::int64_t>::max() / 4;

  explicit FlowNetwork(std::int32_t nodes) : first_(nodes, -1) {}
  std::int32_t add_node();
  void add_arc(std::int32_t from, std::int32_t to, std::int64_t capacity);

  // Sends as much as possible from s to t and returns it. `work` is reduced by the arcs looked at; when it runs out the
  // flow so far (a lower bound) is returned.
  std::int64_t maximize(std::int32_t s, std::int32_t t, std::int64_t& work);

  // After maximize(): 1 for the nodes that s can still reach, the smallest source side of a minimum cut.
  [[nodiscard]] std::vector<char> source_side(std::int32_t s) const;
  // 0 for the nodes that can still reach t: the largest source side of a minimum cut.
  [[nodiscard]] std::vector<char> largest_source_side(std::int32_t t) const;

 private:
  struct Arc {
    std::int32_t to;
    std::int32_t next;  // of the same node; arc ^ 1 is the reverse arc
    std::int64_t room;
  };
  bool level_nodes(std::int32_t s, std::int32_t t, std::int64_t& work);
  std::int64_t blocking_flow(std::int32_t s, std::int32_t t, std::int64_t& work);

  std::vector<std::int32_t> first_;
  std::vector<Arc> arcs_;
  std::vector<std::int32_t> level_, next_, queue_;
};

}  // namespace stowage
