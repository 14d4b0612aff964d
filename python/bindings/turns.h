#pragma once

#include <nanobind/nanobind.h>

void bind_turns(nanobind::module_& m);
