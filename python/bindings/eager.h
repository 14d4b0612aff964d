#pragma once

#include <nanobind/nanobind.h>

void bind_eager(nanobind::module_& m);
