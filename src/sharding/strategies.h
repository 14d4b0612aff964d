// Strategies: the rows of a rule put together over all axes of the mesh, and what each costs to compute.
//
//   rows of mm    R  S0·R->S0  R·S1->S1  S1·S0->P        on a mesh of 2 axes: 4 x 4 strategies, such as (S0·R->S0, S1·S0->P):
//                                                        a S0,S1   b R,S0   out S0,Psum
//
// Time of a kernel: the longer of its arithmetic and its bytes (roofline; Williams, Waterman and Patterson, CACM 52,
// 2009), at the reached rates of the mesh; never shorter than a kernel's start.
#pragma once

#include <vector>

#include "sharding/code.h"
#include "sharding/rules.h"

namespace stowage {

struct Strategy {
  std::vector<Code> in, out;  // per slot (all kUntouched: as it lives), per output
  double compute_ns = 0;      // of the kernel, and of what its recipe says to the other devices
  bool recipe = false;
};

// The first is all whole. Those that cut a dimension unevenly that must be even, or that mix kinds of partial results,
// are left out.
std::vector<Strategy> strategies_of(const TensorProgram& program, const Unit& unit, const OpRule& rule,
                                    const Mesh& mesh);

// Of the whole unit: what the program says, or counted.
double flops_of(const TensorProgram& program, const Unit& unit);

}  // namespace stowage
