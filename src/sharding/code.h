// Placements as numbers: one byte for each axis of the mesh, so that they can be compared, hashed and counted fast.
//
//   "S1,R,Psum"   byte 0: 2   byte 1: 0   byte 2: 0xff (-1)       at most 8 axes
#pragma once

#include <vector>

#include "sharding/rules.h"
#include "stowage/sharding.h"

namespace stowage {

using Code = std::uint64_t;
inline constexpr Code kAllWhole = 0;
inline constexpr std::size_t kMaxAxes = 8;

inline AxisCode axis_code(Code code, std::size_t axis) {
  return static_cast<AxisCode>(static_cast<std::uint8_t>(code >> (8 * axis)));
}
inline Code with_axis(Code code, std::size_t axis, AxisCode part) {
  const Code mask = Code{0xff} << (8 * axis);
  return (code & ~mask) | (static_cast<Code>(static_cast<std::uint8_t>(part)) << (8 * axis));
}
inline bool is_shard(AxisCode part) { return part > 0 && part != kUntouched; }

bool has_partial(Code code, std::size_t axes);
MeshPlacement to_placement(Code code, std::size_t axes);
Code to_code(const MeshPlacement& placement);

// Bytes of the fullest device, the first one on every axis.
std::int64_t largest_bytes(const ProgramTensor& tensor, Code code, const Mesh& mesh);
// All ways to cut the tensor: every dimension of size > 1, and whole; with `partial`, also that summand on each axis.
std::vector<Code> all_codes(const ProgramTensor& tensor, std::size_t axes, AxisCode partial = kWhole);
// Sizes of dimension `dim` over the axes that cut it.
std::int64_t parts_of(Code code, int dim, const Mesh& mesh);

}  // namespace stowage
