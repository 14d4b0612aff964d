// Lines of the user's code as numbers, for runtime/memory/owners.h: asked for at each block, so looked up fast.
//
//   frame ──► outward, past code of hidden folders ──► (code, instruction) ──► number, remembered
//
// Code that has been met is kept alive, so that its address stays its own; at most kMostCodes of them, then lines are
// worked out anew. O(depth of hidden frames) a question.
#pragma once

#include <nanobind/nanobind.h>

#include "runtime/memory/owners.h"

// What stowage::runtime::owners::begin() takes.
stowage::runtime::owners::Lines lines();

// Binds the watching of owners.
void bind_owners(nanobind::module_& m);
