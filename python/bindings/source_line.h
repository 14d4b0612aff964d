// Which line of the user's code is running.
#pragma once

#include <string>
#include <vector>

// "file:line" of the innermost Python frame that is not below one of `hidden` folders, or "". Takes the GIL.
std::string source_line(const std::vector<std::string>& hidden);
