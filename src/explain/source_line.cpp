// The line of the user's code that ran an op: "line" in the op's meta, as capture writes it
// ({"line":"/path/to/train.py:21"}).
#include "stowage/explain.h"

namespace stowage {

// The meta is valid JSON (the reader and capture see to that). Escapes of quotes and backslashes are undone, others
// kept as they stand.
std::string source_line(const Op& op) {
  static constexpr std::string_view kKey = "\"line\"";
  std::size_t at = op.meta.find(kKey);
  if (at == std::string::npos) return {};
  at = op.meta.find_first_not_of(" \t\n\r", at + kKey.size());
  if (at == std::string::npos || op.meta[at] != ':') return {};
  at = op.meta.find_first_not_of(" \t\n\r", at + 1);
  if (at == std::string::npos || op.meta[at] != '"') return {};
  std::string line;
  for (++at; at < op.meta.size() && op.meta[at] != '"'; ++at) {
    if (op.meta[at] == '\\' && at + 1 < op.meta.size() && (op.meta[at + 1] == '"' || op.meta[at + 1] == '\\')) ++at;
    line += op.meta[at];
  }
  return line;
}

}  // namespace stowage
