// Reads the problem of a pipeline.
#include <algorithm>
#include <array>
#include <cmath>

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

constexpr std::int64_t kMost = 4096;  // layers, micro-batches; ranks and stages a rank: below

PipelineLayer read_layer(JsonReader& json, std::int64_t id, Value value) {
  constexpr std::array<std::string_view, 12> keys = {
      "forward_ns",      "backward_ns", "saved_bytes", "sent_bytes", "parameter_bytes", "gradient_bytes",
      "optimizer_bytes", "input_ns",    "weight_ns",   "update_ns",  "joined",          "name"};
  PipelineLayer layer;
  const Where here{.item = "layer", .id = id, .name = &layer.name};
  const auto seen =
      json.read_object(JsonReader::to_object(value, here), here, keys, [&](std::size_t key, Value member) {
        const Where where = here.in_field(keys[key]);
        const auto number = [&] { return JsonReader::read_int(member, where, 0, kMaxExact / 64); };
        switch (key) {
          case 0: layer.forward_ns = number(); break;
          case 1: layer.backward_ns = number(); break;
          case 2: layer.saved_bytes = number(); break;
          case 3: layer.sent_bytes = number(); break;
          case 4: layer.parameter_bytes = number(); break;
          case 5: layer.gradient_bytes = number(); break;
          case 6: layer.optimizer_bytes = number(); break;
          case 7: layer.input_ns = number(); break;
          case 8: layer.weight_ns = number(); break;
          case 9: layer.update_ns = number(); break;
          case 10: layer.joined = JsonReader::read_bool(member, where); break;
          default: layer.name = JsonReader::read_string(member, where); break;
        }
      });
  JsonReader::require_first(4, seen, here, keys);
  // Who does not say how a backward divides has it in halves.
  if ((seen >> 7 & 1U) == 0) layer.input_ns = layer.backward_ns - std::min(layer.backward_ns, layer.weight_ns);
  if ((seen >> 7 & 1U) == 0 && (seen >> 8 & 1U) == 0) layer.input_ns = layer.backward_ns / 2;
  if ((seen >> 8 & 1U) == 0) layer.weight_ns = layer.backward_ns - std::min(layer.backward_ns, layer.input_ns);
  return layer;
}

PipelineTie read_tie(JsonReader& json, std::int64_t id, Value value) {
  constexpr std::array<std::string_view, 4> keys = {"layers", "parameter_bytes", "gradient_bytes", "optimizer_bytes"};
  PipelineTie tie;
  const Where here{.item = "tie", .id = id};
  const auto seen =
      json.read_object(JsonReader::to_object(value, here), here, keys, [&](std::size_t key, Value member) {
        const Where where = here.in_field(keys[key]);
        const auto number = [&] { return JsonReader::read_int(member, where, 0, kMaxExact / 64); };
        switch (key) {
          case 0:
            json.read_list(member, where, [&](std::int64_t i, Value v) {
              tie.layers.push_back(static_cast<std::int32_t>(JsonReader::read_int(v, where.at(i), 0, kMost)));
            });
            break;
          case 1: tie.parameter_bytes = number(); break;
          case 2: tie.gradient_bytes = number(); break;
          default: tie.optimizer_bytes = number(); break;
        }
      });
  JsonReader::require_first(1, seen, here, keys);
  return tie;
}

ScheduleKind read_schedule(Value value, const Where& where) {
  const std::string text = JsonReader::read_string(value, where);
  for (const ScheduleKind kind : {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kInterleaved,
                                  ScheduleKind::kZeroBubble, ScheduleKind::kZeroBubbleV})
    if (text == to_string(kind)) return kind;
  where.fail(concat("is ", quote(text), ", not '1f1b', 'interleaved', 'zero-bubble' or 'zbv'"));
}

template <class T>
void add_once(std::vector<T>& list, T value, const Where& where) {
  if (std::ranges::find(list, value) != list.end()) where.fail("is there before");
  list.push_back(value);
}

double read_rate(Value value, const Where& where) {
  double number = 0;
  if (value.get_double().get(number) != simdjson::SUCCESS || !std::isfinite(number) || number < 1e-6 || number > 1e9)
    where.fail("must be a number from 1e-6 to 1e9");
  return number;
}

bool is_null(Value& value) {
  bool missing = false;
  return value.is_null().get(missing) == simdjson::SUCCESS && missing;
}

}  // namespace

PipelineProblem parse_pipeline(std::string_view text, const std::string& name) {
  constexpr std::array<std::string_view, 14> keys = {
      "format",    "version",   "layers",     "ranks",           "micro_batches", "latency_ns", "gbps",
      "action_ns", "schedules", "node_limit", "stages_per_rank", "name",          "ties",       "memory_limit_bytes"};
  PipelineProblem problem;
  try {
    JsonReader json(text);
    const auto seen = json.read_object(json.root(), {}, keys, [&](std::size_t key, Value value) {
      const Where where = Where{}.in_field(keys[key]);
      switch (key) {
        case 0: JsonReader::expect_format(value, where, "stowage-pipeline"); break;
        case 1: JsonReader::expect_version_1(value, where); break;
        case 2:
          json.read_list(value, where, [&](std::int64_t id, Value layer) {
            if (id == kMost) where.fail("has more than 4,096 entries");
            problem.layers.push_back(read_layer(json, id, layer));
          });
          break;
        case 3: problem.ranks = static_cast<std::int32_t>(JsonReader::read_int(value, where, 1, 256)); break;
        case 4: problem.micro_batches = static_cast<std::int32_t>(JsonReader::read_int(value, where, 1, kMost)); break;
        case 5: problem.latency_ns = JsonReader::read_int(value, where, 0, 1'000'000'000'000); break;
        case 6: problem.gbps = read_rate(value, where); break;
        case 7: problem.action_ns = JsonReader::read_int(value, where, 0, 1'000'000'000'000); break;
        case 8:
          problem.schedules.clear();
          json.read_list(value, where, [&](std::int64_t i, Value v) {
            add_once(problem.schedules, read_schedule(v, where.at(i)), where.at(i));
          });
          break;
        case 9: problem.node_limit = JsonReader::read_int(value, where, 1, kMaxExact); break;
        case 10:
          problem.stages_per_rank.clear();
          json.read_list(value, where, [&](std::int64_t i, Value v) {
            const auto stages = static_cast<std::int32_t>(JsonReader::read_int(v, where.at(i), 1, 16));
            add_once(problem.stages_per_rank, stages, where.at(i));
          });
          break;
        case 11: problem.name = JsonReader::read_string(value, where); break;
        case 12:
          json.read_list(value, where, [&](std::int64_t id, Value tie) {
            if (id == kMostPipelineTies) where.fail(concat("has more than ", kMostPipelineTies, " entries"));
            problem.ties.push_back(read_tie(json, id, tie));
          });
          break;
        default:
          if (!is_null(value)) problem.memory_limit_bytes = JsonReader::read_int(value, where, 0, kMaxExact);
          break;
      }
    });
    JsonReader::require_first(5, seen, {}, keys);
    json.finish();
  } catch (const FormatError& error) {
    throw Error(concat(name, ": ", error.what()));
  }
  return problem;
}

}  // namespace stowage
