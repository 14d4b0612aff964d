// One line on stderr while a verb works for more than a second: what it does, how far it is, for how long. Nothing when
// stderr is no terminal.
//
//     stowage plan: budget  40 %, 12 s
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace stowage::cli {

class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();  // takes the line away

  // For PlanOptions::progress; must not outlive the line. Empty when nothing is shown.
  [[nodiscard]] std::function<void(std::string_view, double)> callback();
  void phase(std::string text);

 private:
  void draw_until_done();

  std::string what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string phase_;
  bool done_ = false;
  std::thread drawer_;  // only when stderr is a terminal
};

}  // namespace stowage::cli
