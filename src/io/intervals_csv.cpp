// The intervals CSV: a header that names the columns id, lower, upper and size in any order, then one buffer a line,
// live in [lower, upper). A column offset, as the output has it, is read over. Fields have no quotes. O(size of the
// text).
#include <array>
#include <charconv>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "io/text_file.h"
#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage {
namespace {

enum Column : std::size_t { kId, kLower, kUpper, kSize, kOffset, kColumns };
constexpr std::array<std::string_view, kColumns> kNames = {"id", "lower", "upper", "size", "offset"};

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const auto comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

class IntervalsReader {
 public:
  IntervalsReader(std::string_view text, std::string name) : rest_(text), name_(std::move(name)) {}

  IntervalsFile run() {
    std::string_view line;
    if (!next_line(line)) fail("the header is missing");
    read_header(split(line));
    while (next_line(line)) {
      if (!line.empty()) read_row(split(line));
    }
    return std::move(file_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InvalidLayout(concat(name_, ": line ", line_, ": ", parts...));
  }

  bool next_line(std::string_view& line) {
    if (rest_.empty()) return false;
    ++line_;
    const auto end = rest_.find('\n');
    line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return true;
  }

  void read_header(const std::vector<std::string_view>& fields) {
    std::array<bool, kColumns> seen{};
    for (const auto field : fields) {
      std::size_t column = 0;
      while (column < kColumns && kNames[column] != field) ++column;
      if (column == kColumns) fail("unknown column ", quote(field));
      if (seen[column]) fail("the column ", quote(field), " is there twice");
      seen[column] = true;
      columns_.push_back(static_cast<Column>(column));
    }
    for (std::size_t column = 0; column < kOffset; ++column) {
      if (!seen[column]) fail("the column ", quote(kNames[column]), " is missing");
    }
  }

  void read_row(const std::vector<std::string_view>& fields) {
    if (fields.size() != columns_.size()) fail("has ", fields.size(), " fields, the header has ", columns_.size());
    LayoutItem item;
    std::string_view id;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      switch (columns_[i]) {
        case kId: id = fields[i]; break;
        case kLower: item.lower = number(fields[i], "lower", -kMaxExact); break;
        case kUpper: item.upper = number(fields[i], "upper", -kMaxExact); break;
        case kSize: item.bytes = number(fields[i], "size", 0); break;
        default: break;
      }
    }
    add(id, item);
  }

  std::int64_t number(std::string_view field, std::string_view column, std::int64_t low) const {
    std::int64_t value = 0;
    const char* const end = field.data() + field.size();
    const auto [rest, error] = std::from_chars(field.data(), end, value);
    if (error == std::errc{} && rest == end && value >= low && value <= kMaxExact) return value;
    fail(column, ": ", quote(field),
         low == 0 ? " is no integer from 0 to 2^53 - 1" : " is no integer below 2^53 in size");
  }

  void add(std::string_view id, const LayoutItem& item) {
    if (id.empty() || id.find('"') != std::string_view::npos) fail("id: ", quote(id), " is empty or has quotes");
    if (!ids_.emplace(id).second) fail("id: ", quote(id), " is there twice");
    if (item.lower > item.upper) fail("id ", quote(id), ": lower ", item.lower, " is above upper ", item.upper);
    total_ += item.bytes;
    if (total_ > kMaxExact) fail("id ", quote(id), ": the sum of all sizes reaches 2^53");
    file_.ids.emplace_back(id);
    file_.items.push_back(item);
  }

  std::string_view rest_;
  std::string name_;
  std::int64_t line_ = 0;
  std::int64_t total_ = 0;
  std::vector<Column> columns_;
  std::unordered_set<std::string_view> ids_;
  IntervalsFile file_;
};

}  // namespace

IntervalsFile parse_intervals(std::string_view csv, const std::string& name) {
  return IntervalsReader(csv, name).run();
}

IntervalsFile load_intervals(const std::string& path) {
  return parse_intervals(io::read_text(path), io::display_name(path));
}

void save_intervals(const IntervalsFile& file, const std::vector<std::int64_t>& offsets, const std::string& path) {
  std::string out = "id,lower,upper,size,offset\n";
  for (std::size_t i = 0; i < file.items.size(); ++i) {
    const LayoutItem& item = file.items[i];
    out += concat(file.ids[i], ",", item.lower, ",", item.upper, ",", item.bytes, ",", offsets[i], "\n");
  }
  io::write_text(path, out);
}

}  // namespace stowage
