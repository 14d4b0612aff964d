// Reads a mesh of devices, the options of sharding, and placements as text.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "io/json_reader.h"
#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage {
namespace {

using io::FormatError;
using io::JsonReader;
using io::Where;
using Value = JsonReader::Value;

double read_number(Value value, const Where& where, bool may_be_zero) {
  double number = 0;
  if (value.get_double().get(number) != simdjson::SUCCESS || !std::isfinite(number)) where.fail("must be a number");
  if (number < 0 || (number == 0 && !may_be_zero))
    where.fail(may_be_zero ? "must not be negative" : "must be greater than 0");
  return number;
}

MeshAxis read_axis(JsonReader& json, std::int64_t id, Value value) {
  constexpr std::array<std::string_view, 4> keys = {"size", "latency_ns", "gbps", "name"};
  MeshAxis axis;
  const Where here{.item = "axis", .id = id, .name = &axis.name};
  const auto seen =
      json.read_object(JsonReader::to_object(value, here), here, keys, [&](std::size_t key, Value member) {
        const Where where = here.in_field(keys[key]);
        switch (key) {
          case 0: axis.size = JsonReader::read_int32(member, where, 1); break;
          case 1: axis.latency_ns = read_number(member, where, true); break;
          case 2: axis.gbps = read_number(member, where, false); break;
          default: axis.name = JsonReader::read_string(member, where); break;
        }
      });
  JsonReader::require_first(1, seen, here, keys);
  return axis;
}

AxisPlacement parse_part(std::string_view part, std::string_view text) {
  using Kind = AxisPlacement::Kind;
  if (part == "R") return {};
  if (part == "Psum") return {Kind::kPartialSum, -1};
  if (part == "Pavg") return {Kind::kPartialAvg, -1};
  if (part == "Pmax") return {Kind::kPartialMax, -1};
  int dim = -1;
  const std::string_view digits = part.substr(std::min<std::size_t>(part.size(), 1));
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), dim);
  if (!part.starts_with('S') || error != std::errc() || end != digits.data() + digits.size() || dim < 0 || dim > 63) {
    throw Error(concat("placement ", quote(text), ": ", quote(part), " is none of S0, S1, ..., R, Psum, Pavg, Pmax"));
  }
  return {Kind::kShard, static_cast<std::int8_t>(dim)};
}

void read_fixed(Value value, const Where& where, ShardingOptions& options) {
  for (auto member : JsonReader::to_object(value, where)) {
    std::string_view name;
    Value entry;
    if (member.unescaped_key().get(name) != simdjson::SUCCESS || member.value().get(entry) != simdjson::SUCCESS) {
      where.fail("is not valid JSON");
    }
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0)
      where.fail(concat(quote(name), " is no tensor id"));
    options.fixed[id] = parse_placement(JsonReader::read_string(entry, where));
  }
}

ShardingGoal read_goal(Value value, const Where& where) {
  const std::string goal = JsonReader::read_string(value, where);
  if (goal == "redundancy") return ShardingGoal::kLeastRedundancy;
  if (goal == "time") return ShardingGoal::kLeastTime;
  where.fail(concat("is ", quote(goal), ", not 'redundancy' or 'time'"));
}

}  // namespace

MeshPlacement parse_placement(std::string_view text) {
  MeshPlacement placement;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    placement.push_back(parse_part(text.substr(at, comma - at), text));
    at = comma + 1;
  }
  return placement;
}

Mesh parse_mesh(std::string_view text, const std::string& name) {
  constexpr std::array<std::string_view, 4> keys = {"axes", "tflops", "memory_gbps", "kernel_ns"};
  Mesh mesh;
  try {
    JsonReader json(text);
    const auto seen = json.read_object(json.root(), {}, keys, [&](std::size_t key, Value value) {
      const Where where = Where{}.in_field(keys[key]);
      switch (key) {
        case 0:
          json.read_list(value, where,
                         [&](std::int64_t id, Value axis) { mesh.axes.push_back(read_axis(json, id, axis)); });
          break;
        case 1: mesh.tflops = read_number(value, where, false); break;
        case 2: mesh.memory_gbps = read_number(value, where, false); break;
        default: mesh.kernel_ns = read_number(value, where, true); break;
      }
    });
    JsonReader::require_first(1, seen, {}, keys);
    json.finish();
    if (mesh.axes.empty()) Where{}.in_field("axes").fail("must not be empty");
    std::int64_t devices = 1;
    for (const MeshAxis& axis : mesh.axes)
      if ((devices *= axis.size) > 1'000'000) Where{}.in_field("axes").fail("has more than 1,000,000 devices");
  } catch (const FormatError& error) {
    throw Error(concat(name, ": ", error.what()));
  }
  return mesh;
}

ShardingOptions parse_sharding_options(std::string_view text, const std::string& name) {
  constexpr std::array<std::string_view, 12> keys = {"goal",
                                                     "eps",
                                                     "memory_limit_bytes",
                                                     "fixed",
                                                     "cluster_rounds",
                                                     "relative_gap",
                                                     "iteration_limit",
                                                     "time_limit_seconds",
                                                     "seed",
                                                     "solver_library",
                                                     "overlap",
                                                     "kept_share"};
  ShardingOptions options;
  try {
    JsonReader json(text);
    json.read_object(json.root(), {}, keys, [&](std::size_t key, Value value) {
      const Where where = Where{}.in_field(keys[key]);
      bool missing = false;
      if (value.is_null().get(missing) == simdjson::SUCCESS && missing) return;
      switch (key) {
        case 0: options.goal = read_goal(value, where); break;
        case 1: options.eps = read_number(value, where, true); break;
        case 2: options.memory_limit_bytes = JsonReader::read_int(value, where, 0, kMaxExact); break;
        case 3: read_fixed(value, where, options); break;
        case 4: options.cluster_rounds = JsonReader::read_int32(value, where); break;
        case 5: options.relative_gap = read_number(value, where, true); break;
        case 6: options.iteration_limit = JsonReader::read_int(value, where, 0, kMaxExact); break;
        case 7: options.time_limit_seconds = read_number(value, where, true); break;
        case 8: options.seed = static_cast<std::uint64_t>(JsonReader::read_int(value, where, 0, kMaxExact)); break;
        case 9: options.solver_library = JsonReader::read_string(value, where); break;
        case 10: options.overlap = JsonReader::read_bool(value, where); break;
        default:
          options.kept_share = read_number(value, where, true);
          if (options.kept_share > 1) where.fail("must be at most 1");
          break;
      }
    });
    json.finish();
  } catch (const FormatError& error) {
    throw Error(concat(name, ": ", error.what()));
  }
  return options;
}

}  // namespace stowage
