#pragma once

#include <nanobind/nanobind.h>

// Binds Guard, which notices when what recorded Python read has changed, and Notes, which tells what Python ran.
void bind_guard(nanobind::module_& m);
void bind_notes(nanobind::module_& m);
