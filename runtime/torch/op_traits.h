// What the hook and the eager budget must know of an operator, looked up once and remembered: the question comes with
// every op.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stowage::runtime {

struct OpTraits {
  std::string name;  // "aten::add.Tensor"
  std::uint16_t arguments = 0;
  std::uint16_t returns = 0;
  bool marker = false;            // of the profiler
  bool composite = false;         // no kernel of its own: redispatching it brings its inner ops back
  bool fills_by_itself = false;   // a composite that may have no inner ops
  bool view = false;              // results alias arguments, nothing is read or written
  bool replayable = false;        // a kernel of PyTorch's own below autograd: running it again gives the same bits
  bool any_order = false;         // ... but on accelerators: it adds there in any order
  bool draws = false;             // from a random generator
  bool lists = false;             // element i of its lists is treated alone
  bool batch_norm = false;        // running statistics are written on the side while `training`
  std::int16_t training = -1;     // index of that flag
  c10::DispatchKeySet autocasts;  // the devices whose autocast has a kernel for it
  std::uint64_t writes = 0;       // bit i: argument i is written in place
  std::uint64_t shape_only = 0;   // bit i: of argument i only the shape matters

  [[nodiscard]] bool writes_argument(std::size_t i) const { return i < 64 && (writes >> i & 1) != 0; }
  [[nodiscard]] bool reads_only_shape(std::size_t i) const { return i < 64 && (shape_only >> i & 1) != 0; }
};

// Stays where it is for the life of the process.
const OpTraits& traits_of(const c10::OperatorHandle& op);

}  // namespace stowage::runtime
