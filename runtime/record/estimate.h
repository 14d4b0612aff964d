// What an op costs where it cannot be measured (FakeTensors compute nothing): a roofline over floating-point operations
// and bytes.
#pragma once

#include <cstdint>

#include "runtime/record/tape.h"

namespace stowage::runtime {

// A machine of round numbers; only ratios between ops matter where these are used.
struct Roofline {
  double flops_per_ns = 100.0;
  double bytes_per_ns = 10.0;
};

// max(flops / flops_per_ns, bytes / bytes_per_ns), in ns. Multiplications are counted for matrix products, convolutions
// and fused attention; everything else is bound by the bytes that it reads and writes.
std::int64_t estimated_cost_ns(const Tape& tape, const TapeOp& op, const Roofline& roofline = {});

}  // namespace stowage::runtime
