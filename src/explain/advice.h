// What to change in the code of a step, found in its graph: one rule a function, each with the pattern that it looks
// for.
//
//   rule                  what the graph shows                                              the change
//   gradients-meet        one small result of (nearly) all gradients scales each of them    clip each gradient by itself
//   kept-gradients        resident buffers that the step adds to and sets to zero           zero_grad(set_to_none=True)
//   accumulation          gradients written again after later activations                   weigh against one larger batch
//   tied-gradient         a gradient that is the sum of two, one of which waits             untie, or live with it
//   logits                cross entropy's buffers hold a part of the peak                   the loss in pieces
//   update-temporaries    temporaries of the optimizer hold a part of the peak              fused=True
//   returned              large results                                                     return less
//   activations           what backward needs holds most of the peak                        batch, or a budget
//   residents             parameters and optimizer state are most of all bytes              an optimizer with less state
//
// A change that can be written as a graph is written so, and planned: the advice tells the arena of that plan. Each
// rule is silent when what it is about holds less than a twentieth of the bytes in question, or when its change would
// not help.
#pragma once

#include <functional>
#include <vector>

#include "stowage/explain.h"

namespace stowage::explained {

struct Scene {
  const Graph& graph;
  const PeakMoment& peak;
  std::int64_t resident_bytes;
  std::int64_t arena_bytes;  // without a limit
  // The arena of a plan of a changed graph, without a limit. Reuse pairs that the change undid are dropped.
  std::function<std::int64_t(Graph)> plan_again;
};

// In the order of the table. O(V + E) and a plan for some of the rules.
std::vector<Advice> advise(const Scene& scene);

// The rules. Each appends at most one piece of advice.
using Rule = void(const Scene&, std::vector<Advice>&);
Rule gradients_meet, kept_gradients, accumulation, tied_gradient;           // rules_gradients.cpp
Rule logits, update_temporaries, returned_results, activations, residents;  // rules_bytes.cpp

// What the rules share (advice.cpp).
std::string rounded_bytes(std::int64_t bytes);                 // "12.3 MiB"
std::string short_line(const Op& op);                          // "train.py:21", or "" without its folders
std::string at_line(const Op& op);                             // " (train.py:21)", or ""
std::string an_arena(const Scene& scene, std::int64_t arena);  // "an arena of 5.0 MiB instead of 9.1 MiB"
bool worth(std::int64_t part, std::int64_t whole);             // at least a twentieth
IdVector<BufferId, std::int32_t> makers(const Graph& graph);   // the op that creates it, or -1
IdVector<BufferId, char> live_at_peak(const Graph& graph, const PeakMoment& peak);

}  // namespace stowage::explained
