// Bytes as people write them: digits and an optional unit, 1024-based with an i (KiB, MiB, GiB, TiB), 1000-based
// without.
#include <array>
#include <charconv>
#include <utility>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "stowage/error.h"
#include "stowage/io.h"

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
  fail(text, "the units are B, KiB, MiB, GiB, TiB, kB, MB, GB and TB");
}

}  // namespace stowage
