// The data of the page: small things as JSON, long columns of numbers beside it, as they lie in memory.
#pragma once

#include <string>

#include "report/report_data.h"

namespace stowage::report {

struct PageData {
  std::string columns;  // little-endian arrays, each at a multiple of 8
  std::string
      json;  // {"plan", "ledger", "timeline"}, null where there is none; a column is [where it begins, how many numbers]
};

// Times are positions on the axis of steps: step + tick / ticks.
PageData page_data(const ReportInput& input);

}  // namespace stowage::report
