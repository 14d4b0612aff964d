// The optional sections of a report: what others measured, read strictly and written again, so that nothing else
// reaches the page.
#pragma once

#include <string>

namespace stowage::report {

// {"rows": [{"tensor", "bytes", "placement", "local_bytes", "redundant_bytes", "why"}], "devices"}; rows must be there.
// Throws Error naming the row and the field.
std::string ledger_json(const std::string& text);

// {"events": [{"t_ns", "event", "bytes", "op"}], "live": [{"t_ns", "bytes"}], "limit_bytes", "holders": [{"line",
// "source", "phase", "bytes"}]}; events must be there. Throws Error likewise.
std::string timeline_json(const std::string& text);

}  // namespace stowage::report
