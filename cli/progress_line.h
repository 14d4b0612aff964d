// One line on stderr that is drawn over and over while something is planned; nothing when stderr is not a terminal.
#pragma once

#include <functional>
#include <string_view>

namespace stowage::cli {

class ProgressLine {
 public:
  ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();  // takes the line away

  // For PlanOptions::progress; must not outlive the line.
  [[nodiscard]] std::function<void(std::string_view, double)> callback() const;

 private:
  bool shown_;
};

}  // namespace stowage::cli
