// Hooks of the autograd nodes that outlive a step.
#pragma once

#include <nanobind/nanobind.h>

void bind_node_hooks(nanobind::module_& m);
