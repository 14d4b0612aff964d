// What must come to its end although Python may be interrupted between any two of its instructions.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

// Calls function() until it has come to its end. Returns what it raised first, or null.
std::exception_ptr to_its_end(const nanobind::object& function);

void bind_blocks(nanobind::module_& m);
