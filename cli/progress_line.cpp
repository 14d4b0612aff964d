#include "progress_line.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "stowage/stopwatch.h"

namespace stowage::cli {

ProgressLine::ProgressLine(std::string what) : what_(std::move(what)) {
  if (isatty(STDERR_FILENO) == 1) drawer_ = std::thread([this] { draw_until_done(); });
}

ProgressLine::~ProgressLine() {
  if (!drawer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  drawer_.join();
}

void ProgressLine::phase(std::string text) {
  const std::lock_guard lock(mutex_);
  phase_ = std::move(text);
}

std::function<void(std::string_view, double)> ProgressLine::callback() {
  if (!drawer_.joinable()) return {};
  return [this](std::string_view name, double done) {
    char percent[16] = "";
    if (done > 0 && done < 1) std::snprintf(percent, sizeof percent, " %.0f %%", done * 100);
    phase(std::string(name) + percent);
  };
}

void ProgressLine::draw_until_done() {
  using std::chrono::milliseconds;
  const Stopwatch watch;
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, milliseconds(1000), [this] { return done_; })) return;
  do {
    std::fprintf(stderr, "\r\x1b[K%s: %s%s%lld s", what_.c_str(), phase_.c_str(), phase_.empty() ? "" : ", ",
                 static_cast<long long>(watch.seconds()));
    std::fflush(stderr);
  } while (!changed_.wait_for(lock, milliseconds(250), [this] { return done_; }));
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
}

}  // namespace stowage::cli
