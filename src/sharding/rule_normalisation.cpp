// Normalisations. What is normalised together stays together; every other dimension may be cut.
//
//   layer norm over H     x [B, S, H] S0 -> out S0, mean S0, rstd S0        backward: dx S0, dweight and dbias Psum
//   group norm            x [N, C, ...] S0
//   batch norm, training  x [N, C, ...] S1, all that is per channel S0
//                         x S0, all that is per channel whole               "statistics_of_parts": those of all parts, put together
//   batch norm, running   S1, and S0: it is then element by element
#include <algorithm>
#include <set>

#include "sharding/rules.h"

namespace stowage {
namespace {

using Names = std::set<std::string, std::less<>>;

constexpr std::int64_t kItemBytes = 4;  // of a statistic

bool per_row(const UnitView& unit, OpRule& rule) {  // layer norm, RMS norm
  const bool backward = unit.name.ends_with("_backward");
  const int data = std::max(0, unit.slot_of("input"));
  const auto rank = static_cast<int>(unit.shape(data).size());
  const auto normalised = static_cast<int>(unit.integers("normalized_shape").size());
  if (normalised == 0) return false;
  for (int d = 0; d < rank - normalised; ++d) {
    AxisRow row = whole_row(unit);
    for (int s = 0; s < unit.slots(); ++s) {
      const auto argument = unit.argument_of(s);
      row.in[static_cast<std::size_t>(s)] = argument == "weight" || argument == "bias" ? kWhole : shard(d);
    }
    for (int o = 0; o < unit.outputs(); ++o)
      row.out[static_cast<std::size_t>(o)] = backward && o > 0 ? kPartSum : shard(d);
    rule.rows.push_back(std::move(row));
  }
  return true;
}

// Attributes N, C, HxW, group: N is a number the kernel is called with
bool per_group(const UnitView& unit, OpRule& rule) {
  const bool backward = unit.name.ends_with("_backward");
  AxisRow row = whole_row(unit);
  for (int s = 0; s < unit.slots(); ++s) {
    const auto argument = unit.argument_of(s);
    row.in[static_cast<std::size_t>(s)] = argument == "weight" || argument == "bias" ? kWhole : shard(0);
  }
  for (int o = 0; o < unit.outputs(); ++o)
    row.out[static_cast<std::size_t>(o)] = backward && o > 0 ? kPartSum : shard(0);
  rule.rows.push_back(std::move(row));
  return true;
}

bool per_channel(const UnitView& unit, OpRule& rule) {
  const bool backward = unit.name.find("backward") != std::string::npos;
  const bool training = unit.name == "_batch_norm_no_update" ? false
                        : unit.name.find("with_update") != std::string::npos ||
                                unit.name.find("cudnn_batch_norm_backward") != std::string::npos
                            ? true
                            : unit.integer("train", unit.integer("training", unit.integer("update", 1))) != 0;
  const int data = std::max(0, unit.slot_of("input"));
  const std::int64_t channels = unit.shape(data).size() > 1 ? unit.shape(data)[1] : 0;
  const std::size_t rank = unit.shape(data).size();
  AxisRow channel = whole_row(unit), batch = whole_row(unit);
  for (int s = 0; s < unit.slots(); ++s) {
    const auto shape = unit.shape(s);
    const auto at = static_cast<std::size_t>(s);
    if (shape.size() == rank)
      channel.in[at] = shard(1), batch.in[at] = shard(0);
    else if (shape.size() == 1 && shape[0] == channels)
      channel.in[at] = shard(0);
    else if (shape.size() != 1 || shape[0] != 0) {
      if (unit.argument_of(s) == "reserve" || unit.argument_of(s) == "reserveSpace") return true;  // opaque: whole only
    }
  }
  for (int o = 0; o < unit.outputs(); ++o) {
    const auto shape = unit.out_shape(o);
    const auto at = static_cast<std::size_t>(o);
    if (shape.size() == rank)
      channel.out[at] = shard(1), batch.out[at] = shard(0);
    else if (shape.size() == 1 && shape[0] == channels)
      channel.out[at] = shard(0), batch.out[at] = backward ? kPartSum : kWhole;
  }
  rule.rows.push_back(std::move(channel));
  static const Names with_recipe = {"native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit"};
  if (training && !with_recipe.contains(unit.name)) return true;
  if (training) {  // of each part: its size, and two numbers per channel; results are then whole on each device
    set_recipe("statistics_of_parts", 0, rule);
    rule.recipe_gathered = kItemBytes * 3 * channels;
    for (std::size_t o = 1; o < batch.out.size(); ++o) batch.out[o] = kWhole;
  }
  rule.rows.push_back(std::move(batch));
  return true;
}

}  // namespace

bool normalisation_rule(const UnitView& unit, OpRule& rule) {
  static const Names rows = {"native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm",
                             "_fused_rms_norm_backward"};
  static const Names groups = {"native_group_norm", "native_group_norm_backward"};
  static const Names channels = {"native_batch_norm",        "native_batch_norm_backward",
                                 "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
                                 "cudnn_batch_norm",         "cudnn_batch_norm_backward",
                                 "_batch_norm_with_update",  "_batch_norm_no_update",
                                 "batch_norm_backward"};
  if (rows.contains(unit.name)) return per_row(unit, rule);
  if (groups.contains(unit.name)) return per_group(unit, rule);
  if (channels.contains(unit.name)) return per_channel(unit, rule);
  return false;
}

}  // namespace stowage
