// The parts of stowage._runtime: each adds its classes and functions to the module.
#pragma once

#include <nanobind/nanobind.h>

void bind_memory(nanobind::module_& m);         // the allocator, arenas, and where swapped buffers wait
void bind_generators(nanobind::module_& m);     // states of random generators
void bind_operators(nanobind::module_& m);      // what recorders see of operators
void bind_uninterrupted(nanobind::module_& m);  // calls that no interrupt ends half way
void bind_recorder(nanobind::module_& m);       // recorders and tapes
void bind_node_hooks(nanobind::module_& m);     // hooks of the autograd nodes that outlive a step
void bind_turns(nanobind::module_& m);          // turns of the calls of one compiled step
void bind_matcher(nanobind::module_& m);        // matching a call with tapes
void bind_lowering(nanobind::module_& m);       // from a tape to a graph
void bind_executor(nanobind::module_& m);       // executing a plan
void bind_eager(nanobind::module_& m);          // the budget of eager training
