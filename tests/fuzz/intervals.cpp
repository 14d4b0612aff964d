// The reader of intervals on any text, and layouts of what it accepts: nothing overlaps, and nothing lies above the
// height.
#include <algorithm>

#include "fuzz/target.h"
#include "stowage/io.h"
#include "stowage/layout.h"

namespace stowage::fuzz {
namespace {

constexpr std::size_t kMostPairs = 300;

void judge(const std::vector<LayoutItem>& items, const LayoutResult& result) {
  require(result.offsets.size() == items.size(), "every item has an address");
  require(result.lower_bound_bytes <= result.height_bytes, "a bound is no higher than what it bounds");
  const auto is_empty = [](const LayoutItem& item) { return item.bytes == 0 || item.lower == item.upper; };
  for (std::size_t i = 0; i < std::min(items.size(), kMostPairs); ++i) {
    if (is_empty(items[i])) continue;
    const std::int64_t end = result.offsets[i] + items[i].bytes;
    require(result.offsets[i] >= 0 && end <= result.height_bytes, "items lie below the height");
    for (std::size_t j = 0; j < i; ++j) {
      const bool together = items[i].lower < items[j].upper && items[j].lower < items[i].upper;
      const bool over = result.offsets[i] < result.offsets[j] + items[j].bytes && result.offsets[j] < end;
      require(!together || !over || is_empty(items[j]), "no two items overlap");
    }
  }
}

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::accepts([&] {
    const IntervalsFile file = parse_intervals(fuzz::text_of(data, size), "input");
    fuzz::require(file.ids.size() == file.items.size(), "every item has an id");
    LayoutOptions options;
    options.node_budget = 1'000;
    options.family_work = 100'000;
    fuzz::judge(file.items, layout(file.items, options));
  });
  return 0;
}
