// Bytes as people write them: digits and an optional unit, 1024-based with an i (KiB, MiB, GiB, TiB), 1000-based
// without; and as they read them, always 1024-based.
#include "stowage/bytes.h"

#include <array>
#include <charconv>
#include <utility>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "stowage/error.h"

namespace stowage {
namespace {

constexpr std::array<std::pair<std::string_view, std::int64_t>, 11> kUnits = {{
    {"", 1},
    {"B", 1},
    {"KiB", std::int64_t{1} << 10},
    {"MiB", std::int64_t{1} << 20},
    {"GiB", std::int64_t{1} << 30},
    {"TiB", std::int64_t{1} << 40},
    {"kB", 1'000},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
}};

struct Unit {
  std::int64_t from_bytes;  // used for so many and more
  std::int64_t bytes;
  std::string_view name;
};
constexpr std::array<Unit, 3> kWords = {{
    {std::int64_t{8} << 30, std::int64_t{1} << 30, "GiB"},  // below, MiB tell more
    {std::int64_t{1} << 20, std::int64_t{1} << 20, "MiB"},
    {std::int64_t{1} << 10, std::int64_t{1} << 10, "KiB"},
}};

std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t i = digits.size(); i > 3;) digits.insert(i -= 3, ",");
  return digits;
}

[[noreturn]] void fail(std::string_view text, std::string_view why) {
  throw Error(concat(quote(text), " is no number of bytes: ", why));
}

}  // namespace

std::int64_t parse_bytes(std::string_view text) {
  std::int64_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  if (error == std::errc::result_out_of_range) fail(text, "it must be below 2^53");
  if (error != std::errc{} || text.front() == '-')
    fail(text, "write digits and a unit, such as 4096, 512MiB, 4GiB or 4GB");
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  for (const auto& [name, factor] : kUnits) {
    if (unit != name) continue;
    if (count > kMaxExact / factor) fail(text, "it must be below 2^53");
    return count * factor;
  }
  if (unit.front() == '.' || unit.front() == ' ')
    fail(text, "write a whole number and its unit together, such as 1536MiB for one and a half GiB");
  fail(text, "the units are B, KiB, MiB, GiB, TiB, kB, MB, GB and TB");
}

std::string in_words(std::int64_t bytes, Rounding rounding) {
  if (bytes < 0) return "-" + in_words(-bytes, static_cast<Rounding>(-static_cast<int>(rounding)));
  for (const Unit& unit : kWords) {
    if (bytes < unit.from_bytes) continue;
    const std::int64_t whole = bytes / unit.bytes;
    const std::int64_t added = rounding == Rounding::kUp     ? unit.bytes - 1
                               : rounding == Rounding::kDown ? 0
                                                             : unit.bytes / 2;
    const std::int64_t tenths = 10 * whole + (10 * (bytes % unit.bytes) + added) / unit.bytes;
    return concat(with_commas(tenths / 10), ".", tenths % 10, " ", unit.name);
  }
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

}  // namespace stowage
