// Which Python code is running.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

// "file:line" of the innermost Python frame that is not below one of `hidden` folders, or "". Takes the GIL.
std::string source_line(const std::vector<std::string>& hidden);

// Adds to the set `codes` the code of all Python frames of this thread, from the innermost one to that of the code
// `until`. Takes the GIL; runs nothing of Python's.
void note_running_codes(const nanobind::object& codes, const nanobind::object& until);
