// A guard: what a recorded step's Python could see when it was recorded, and whether it still is so.
#pragma once

#include <nanobind/nanobind.h>

void bind_guard(nanobind::module_& m);
