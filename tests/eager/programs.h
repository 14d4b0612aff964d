// Made-up training programs for the simulator.
#pragma once

#include <cstdint>
#include <vector>

namespace stowage::testing {

// An op reads and makes program values; `dies` are those whose storage goes after it. A value made `over` another takes
// its place.
struct ProgramOp {
  std::uint64_t signature = 0;
  std::int64_t compute_ns = 0;
  std::vector<int> reads, makes, dies;
  bool recomputable = true;
};
struct Program {
  std::vector<std::int64_t> bytes;  // by program value
  std::vector<int> persistent;      // there before the first iteration
  std::vector<std::vector<ProgramOp>> iterations;
};

// `layers` of a few ops forward and backward and an update of each parameter in place, `iterations` times. Sizes and
// times are random.
Program training_program(std::uint64_t seed, int layers, int iterations);
// The same, the number of layers changing from iteration to iteration.
Program changing_program(std::uint64_t seed, int layers, int iterations);

// An update: its first makes take the places of the first dying values.
bool in_place(const ProgramOp& op);
std::int64_t unlimited_peak(const Program& program);
// Largest bytes that one op reads and makes.
std::int64_t largest_op(const Program& program);

}  // namespace stowage::testing
