// Convolutions and pools over planes.
//
//   input [N, C, ...]   weight [O, C, ...]   bias [O]   out [N, O, ...]     backward      dinput   dweight   dbias
//   S0                  R                    R          S0                  samples       S0       Psum      Psum
//   R                   S0                   S0         S1                  out channels  Psum     S0        S0
//   S1                  S1                   (none)     Psum                in channels   S1       S1        R
//
// Channels are cut only without groups. Pools: samples and channels.
#include <set>

#include "sharding/rules.h"

namespace stowage {
namespace {

void set(AxisCodes& codes, int at, AxisCode code) {
  if (at >= 0 && at < static_cast<int>(codes.size())) codes[static_cast<std::size_t>(at)] = code;
}

bool forward(const UnitView& unit, OpRule& rule) {
  const int input = unit.slot_of("input"), weight = unit.slot_of("weight"), bias = unit.slot_of("bias");
  if (input < 0 || weight < 0) return false;
  AxisRow samples = whole_row(unit), out_channels = samples, in_channels = samples;
  set(samples.in, input, shard(0)), set(samples.out, 0, shard(0));
  rule.rows.push_back(samples);
  if (unit.integer("groups", 1) != 1) return true;
  const bool transposed = unit.integer("transposed", 0) != 0;
  set(out_channels.in, weight, shard(transposed ? 1 : 0)), set(out_channels.in, bias, shard(0)),
      set(out_channels.out, 0, shard(1));
  rule.rows.push_back(out_channels);
  set(in_channels.in, input, shard(1)), set(in_channels.in, weight, shard(transposed ? 0 : 1)),
      set(in_channels.out, 0, kPartSum);
  set(in_channels.in, bias, kPartSum);
  rule.rows.push_back(in_channels);
  return true;
}

bool backward(const UnitView& unit, OpRule& rule) {
  const int grad = unit.slot_of("grad_output"), input = unit.slot_of("input"), weight = unit.slot_of("weight");
  if (grad < 0 || input < 0 || weight < 0) return false;
  AxisRow samples = whole_row(unit), out_channels = samples, in_channels = samples;
  set(samples.in, grad, shard(0)), set(samples.in, input, shard(0));
  set(samples.out, 0, shard(0)), set(samples.out, 1, kPartSum), set(samples.out, 2, kPartSum);
  rule.rows.push_back(samples);
  if (unit.integer("groups", 1) != 1) return true;
  const bool transposed = unit.integer("transposed", 0) != 0;
  const AxisCode weight_out = shard(transposed ? 1 : 0), weight_in = shard(transposed ? 0 : 1);
  set(out_channels.in, grad, shard(1)), set(out_channels.in, weight, weight_out);
  set(out_channels.out, 0, kPartSum), set(out_channels.out, 1, weight_out), set(out_channels.out, 2, shard(0));
  rule.rows.push_back(out_channels);
  set(in_channels.in, input, shard(1)), set(in_channels.in, weight, weight_in);
  set(in_channels.out, 0, shard(1)), set(in_channels.out, 1, weight_in);
  rule.rows.push_back(in_channels);
  return true;
}

}  // namespace

bool convolution_rule(const UnitView& unit, OpRule& rule) {
  static const std::set<std::string, std::less<>> pools = {"max_pool2d_with_indices",
                                                           "max_pool2d_with_indices_backward",
                                                           "avg_pool2d",
                                                           "avg_pool2d_backward",
                                                           "_adaptive_avg_pool2d",
                                                           "_adaptive_avg_pool2d_backward",
                                                           "adaptive_max_pool2d",
                                                           "max_pool3d_with_indices",
                                                           "upsample_nearest2d",
                                                           "upsample_bilinear2d"};
  if (unit.name == "convolution" || unit.name == "_convolution") return forward(unit, rule);
  if (unit.name == "convolution_backward") return backward(unit, rule);
  if (!pools.contains(unit.name) || unit.slots() == 0 || unit.shape(0).size() < 4) return false;
  add_leading_rows(unit, 2, rule);
  return true;
}

}  // namespace stowage
