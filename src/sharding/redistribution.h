// Bringing a tensor from one placement to another: steps, each on one axis, and the cheapest way by them.
//
//   on axis a     S(k) -> R     all-gather        (n-1) latencies + (n-1)/n of the larger side's bytes
//                 P -> S(k)     reduce-scatter    the same
//                 P -> R        all-reduce        twice that
//                 S(j) -> S(k)  all-to-all        (n-1) latencies + (n-1)/n of the local bytes
//                 R -> S(k)     keep a slice      nothing          R -> P   keep it on one device     nothing
//
// A later axis cuts within the slices of an earlier one, so an axis may start or stop cutting a dimension only while no
// later axis cuts it: S0,S0 goes to R,S0 by way of S0,R. Costs after Thakur, Rabenseifner and Gropp, "Optimization of
// collective communication operations in MPICH", 2005.
#pragma once

#include <unordered_map>
#include <vector>

#include "sharding/code.h"

namespace stowage {

struct Hop {
  Code from = 0, to = 0;
  double ns = 0;
};

// The axis that a hop is on, and what of its time are latencies.
std::size_t axis_of(const Hop& hop);
double latency_ns(const Hop& hop, const Mesh& mesh);

// Of a summand of so many bytes on each device of the axis.
double all_reduce_ns(std::int64_t bytes, const MeshAxis& axis);
// Until each device of the axis has so many bytes, an even part of each.
double all_gather_ns(std::int64_t bytes, const MeshAxis& axis);

// All steps within a set of placements.
std::vector<Hop> steps_within(const std::vector<Code>& codes, const ProgramTensor& tensor, const Mesh& mesh);

struct Way {
  double ns = 0;
  std::vector<Hop> hops;
};

// The cheapest ways from one placement to all that can be reached (Dijkstra, IPL 1959): a redistribution costs the same
// wherever it is asked for.
class Ways {
 public:
  Ways(const ProgramTensor& tensor, const Mesh& mesh, AxisCode partial);
  // At what a ns of each axis counts; with `shared`, latencies count nothing.
  Ways(const ProgramTensor& tensor, const Mesh& mesh, AxisCode partial, const std::vector<double>& prices, bool shared);
  [[nodiscard]] Way between(Code from, Code to) const;  // ns is infinite when there is none
  // Steps among which every one of `from` has a cheapest way to every one of `to`: far fewer than all where either side
  // is narrow.
  [[nodiscard]] std::vector<Hop> steps_between(const std::vector<Code>& from, const std::vector<Code>& to) const;

 private:
  struct Label {
    double ns;
    std::int32_t before;
  };
  const std::vector<Label>& labels_from(std::int32_t from) const;

  std::vector<Code> codes_;
  std::unordered_map<Code, std::int32_t> index_;
  std::vector<std::vector<std::pair<std::int32_t, double>>> next_;
  mutable std::vector<std::vector<Label>> labels_;
};

}  // namespace stowage
