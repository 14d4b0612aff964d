#include "progress_line.h"

#include <unistd.h>

#include <cstdio>

namespace stowage::cli {

ProgressLine::ProgressLine() : shown_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

std::function<void(std::string_view, double)> ProgressLine::callback() const {
  if (!shown_) return {};
  return [](std::string_view phase, double done) {
    std::fprintf(stderr, "\r\x1b[K%.*s %3.0f %%", static_cast<int>(phase.size()), phase.data(), done * 100);
  };
}

}  // namespace stowage::cli
