// Reads a plan: one pass over the text. What can be said of a plan alone is checked here; whether its ids, times and
// addresses suit a graph is for check() to say. O(size of the text).
#include <array>
#include <limits>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "io/json_reader.h"
#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage {
namespace {

using io::JsonReader;
using io::Where;
using Value = JsonReader::Value;

// Steps and addresses outside the plan are no business of the reader, negative ones neither.
constexpr std::int32_t kAnyStep = std::numeric_limits<std::int32_t>::min();

class PlanReader {
 public:
  explicit PlanReader(std::string_view text) : json_(text) {}

  Plan run() {
    constexpr std::array<std::string_view, 10> keys = {"format", "version",    "graph_sha256", "align", "arena_bytes",
                                                       "steps",  "placements", "scratch",      "away",  "meta"};
    const auto seen = json_.read_object(json_.root(), {}, keys, [&](std::size_t key, Value value) {
      const Where where = Where{}.in_field(keys[key]);
      switch (key) {
        case 0: JsonReader::expect_format(value, where, "stowage-plan"); break;
        case 1: JsonReader::expect_version_1(value, where); break;
        case 2: plan_.graph_sha256 = JsonReader::read_string(value, where); break;
        case 3: plan_.align = JsonReader::read_int(value, where, 1, kMaxExact); break;
        case 4: plan_.arena_bytes = JsonReader::read_int(value, where, 0, kMaxExact); break;
        case 5: json_.read_list(value, where, [&](std::int64_t id, Value entry) { read_step(entry, id); }); break;
        case 6: json_.read_list(value, where, [&](std::int64_t id, Value entry) { read_placement(entry, id); }); break;
        case 7: json_.read_list(value, where, [&](std::int64_t id, Value entry) { read_scratch(entry, id); }); break;
        case 8:
          json_.read_list(value, where, [&](std::int64_t id, Value entry) {
            plan_.away.emplace_back(JsonReader::read_int32(entry, where.at(id)));
          });
          break;
        default: plan_.meta = JsonReader::read_meta(value, where); break;
      }
    });
    JsonReader::require_first(7, seen, {}, keys);  // a plan without scratch may leave the list out
    json_.finish();
    check_until();
    return std::move(plan_);
  }

 private:
  void read_step(Value entry, std::int64_t id) {
    constexpr std::array<std::string_view, 4> keys = {"op", "swap_out", "swap_in", "until"};
    constexpr std::uint32_t run_keys = 1;
    constexpr std::uint32_t out_keys = 2 | 8;
    constexpr std::uint32_t in_keys = 4 | 8;
    const Where item{"step", id};
    Step& step = plan_.steps.emplace_back();
    const auto seen =
        json_.read_object(JsonReader::to_object(entry, item), item, keys, [&](std::size_t key, Value value) {
          const std::int32_t number = JsonReader::read_int32(value, item.in_field(keys[key]));
          switch (key) {
            case 0: step.op = OpId(number); break;
            case 3: step.until = number; break;
            default: step.buffer = BufferId(number); break;
          }
        });
    if (seen != run_keys && seen != out_keys && seen != in_keys) {
      item.fail("must have the keys 'op', or 'swap_out' and 'until', or 'swap_in' and 'until'");
    }
    step.kind = seen == run_keys ? Step::Kind::kRun : seen == out_keys ? Step::Kind::kSwapOut : Step::Kind::kSwapIn;
  }

  // The number of steps is known only at the end.
  void check_until() const {
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const Step& step = plan_.steps[i];
      if (step.kind == Step::Kind::kRun) continue;
      if (step.until > std::ssize(plan_.steps) || step.until <= static_cast<std::int64_t>(i)) {
        const Where where{"step", static_cast<std::int64_t>(i)};
        where.in_field("until").fail(concat(step.until, " is not in (", i, ", ", plan_.steps.size(), "]"));
      }
    }
  }

  void read_placement(Value entry, std::int64_t id) {
    constexpr std::array<std::string_view, 4> keys = {"buffer", "from", "to", "offset"};
    const Where item{"placement", id};
    Placement& placement = plan_.placements.emplace_back();
    const auto seen =
        json_.read_object(JsonReader::to_object(entry, item), item, keys, [&](std::size_t key, Value value) {
          const Where where = item.in_field(keys[key]);
          switch (key) {
            case 0: placement.buffer = BufferId(JsonReader::read_int32(value, where)); break;
            case 1: placement.from = JsonReader::read_int32(value, where, kAnyStep); break;
            case 2: placement.to = JsonReader::read_int32(value, where, kAnyStep); break;
            default: placement.offset = JsonReader::read_int(value, where, -kMaxExact, kMaxExact); break;
          }
        });
    JsonReader::require_first(4, seen, item, keys);
  }

  void read_scratch(Value entry, std::int64_t id) {
    constexpr std::array<std::string_view, 3> keys = {"step", "index", "offset"};
    const Where item{"scratch", id};
    ScratchPlacement& scratch = plan_.scratch.emplace_back();
    const auto seen =
        json_.read_object(JsonReader::to_object(entry, item), item, keys, [&](std::size_t key, Value value) {
          const Where where = item.in_field(keys[key]);
          switch (key) {
            case 0: scratch.step = JsonReader::read_int32(value, where); break;
            case 1: scratch.index = JsonReader::read_int32(value, where); break;
            default: scratch.offset = JsonReader::read_int(value, where, -kMaxExact, kMaxExact); break;
          }
        });
    JsonReader::require_first(3, seen, item, keys);
  }

  JsonReader json_;
  Plan plan_;
};

}  // namespace

Plan parse_plan(std::string_view json, const std::string& name) {
  try {
    return PlanReader(json).run();
  } catch (const io::FormatError& error) {
    throw InvalidPlan(concat(name, ": ", error.what()));
  }
}

}  // namespace stowage
