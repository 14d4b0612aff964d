// One page that holds everything. Nothing can leave it and nothing in it can run but our own script: the policy in its
// head names that script and that style sheet by their digests and forbids every request; data is base64 in an inert
// element, and the script shows it as text only. It is compressed: a browser unpacks a megabyte faster than it reads
// ten.
#include <array>
#include <utility>

#include "io/gzip.h"
#include "report/base64.h"
#include "report/page_data.h"
#include "report/page_parts.h"
#include "stowage/io.h"
#include "stowage/report.h"

namespace stowage {
namespace {

using report::base64;

std::string digest_of(std::string_view text) {
  const std::string hex = sha256_hex(text);
  std::string bytes;
  const auto digit = [&](std::size_t i) { return hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10; };
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(digit(i) * 16 + digit(i + 1));
  return "'sha256-" + base64(std::string_view(bytes)) + "'";
}

// The columns, then the JSON, compressed; and where the JSON begins.
std::string packed(const report::PageData& data) {
  return std::to_string(data.columns.size()) + ":" + base64(io::gzip(data.columns + data.json));
}

}  // namespace

std::string report_html(const ReportInput& input) {
  const std::string data = packed(report::page_data(input));
  const std::string policy = "default-src 'none'; script-src " + digest_of(report::kPageScript) + "; style-src " +
                             digest_of(report::kPageStyle) + "; img-src data:; base-uri 'none'; form-action 'none'";
  const std::array<std::pair<std::string_view, std::string_view>, 4> parts = {
      {{"POLICY", policy}, {"STYLE", report::kPageStyle}, {"DATA", data}, {"SCRIPT", report::kPageScript}}};
  std::string out;
  std::string_view rest = report::kPageHtml;
  for (const auto& [name, text] : parts) {  // in the order in which the page has them
    const std::string mark = "{{" + std::string(name) + "}}";
    const std::size_t at = rest.find(mark);
    out += rest.substr(0, at);
    out += text;
    rest.remove_prefix(at + mark.size());
  }
  out += rest;
  return out;
}

}  // namespace stowage
