#include "io/text_file.h"
#include "stowage/error.h"
#include "stowage/report.h"

namespace stowage {
namespace {

bool ends_in(std::string_view path, std::string_view end) {
  return path.ends_with(end) || path.ends_with(std::string(end) + ".gz");
}

}  // namespace

void save_report(const ReportInput& input, const std::string& path) {
  if (path.ends_with(".html")) return io::write_text(path, report_html(input));
  if (ends_in(path, ".perfetto.json")) return io::write_text(path, report_perfetto(input));
  if (path.ends_with(".pickle")) return io::write_text(path, report_snapshot(input));
  throw Error(path + ": a report's name must end in .html, .perfetto.json or .pickle");
}

}  // namespace stowage
