// The data of the page: small things as JSON, long columns as base64 of typed arrays.
#pragma once

#include <string>

#include "report/report_data.h"

namespace stowage::report {

// {"plan": ..., "ledger": ..., "timeline": ...}; what is not there is null. Times are positions on the axis of steps: step + tick / ticks.
std::string page_data(const ReportInput& input);

}  // namespace stowage::report
