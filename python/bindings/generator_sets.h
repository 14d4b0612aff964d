#pragma once

#include <ATen/core/Generator.h>
#include <nanobind/nanobind.h>

// From now on the runtime is told of each call of Python's that seeds or sets a generator of PyTorch's, or takes its
// state out of it.
void watch_generator_sets();
// A torch.Generator of Python's.
at::Generator generator_of(nanobind::handle object);
