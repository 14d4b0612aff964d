#include "sharding/code.h"

#include <algorithm>

namespace stowage {

bool has_partial(Code code, std::size_t axes) {
  for (std::size_t a = 0; a < axes; ++a)
    if (axis_code(code, a) < 0) return true;
  return false;
}

MeshPlacement to_placement(Code code, std::size_t axes) {
  using Kind = AxisPlacement::Kind;
  MeshPlacement placement(axes);
  for (std::size_t a = 0; a < axes; ++a) {
    const AxisCode part = axis_code(code, a);
    if (is_shard(part)) placement[a] = {Kind::kShard, static_cast<std::int8_t>(part - 1)};
    if (part == kPartSum) placement[a] = {Kind::kPartialSum, -1};
    if (part == kPartAvg) placement[a] = {Kind::kPartialAvg, -1};
    if (part == kPartMax) placement[a] = {Kind::kPartialMax, -1};
  }
  return placement;
}

Code to_code(const MeshPlacement& placement) {
  using Kind = AxisPlacement::Kind;
  Code code = 0;
  for (std::size_t a = 0; a < placement.size(); ++a) {
    AxisCode part = kWhole;
    switch (placement[a].kind) {
      case Kind::kShard: part = shard(placement[a].dim); break;
      case Kind::kReplicate: break;
      case Kind::kPartialSum: part = kPartSum; break;
      case Kind::kPartialAvg: part = kPartAvg; break;
      case Kind::kPartialMax: part = kPartMax; break;
    }
    code = with_axis(code, a, part);
  }
  return code;
}

std::int64_t largest_bytes(const ProgramTensor& tensor, Code code, const Mesh& mesh) {
  std::int64_t bytes = tensor.item_bytes;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    std::int64_t size = tensor.shape[d];
    for (std::size_t a = 0; a < mesh.axes.size(); ++a)
      if (axis_code(code, a) == shard(static_cast<int>(d))) size = (size + mesh.axes[a].size - 1) / mesh.axes[a].size;
    bytes *= size;
  }
  return bytes;
}

std::vector<Code> all_codes(const ProgramTensor& tensor, std::size_t axes, AxisCode partial) {
  std::vector<AxisCode> parts = {kWhole};
  for (std::size_t d = 0; d < tensor.shape.size(); ++d)
    if (tensor.shape[d] > 1) parts.push_back(shard(static_cast<int>(d)));
  if (partial != kWhole) parts.push_back(partial);
  std::vector<Code> codes = {0};
  for (std::size_t a = 0; a < axes; ++a) {
    std::vector<Code> longer;
    for (const Code code : codes)
      for (const AxisCode part : parts) longer.push_back(with_axis(code, a, part));
    codes = std::move(longer);
  }
  return codes;
}

std::int64_t parts_of(Code code, int dim, const Mesh& mesh) {
  std::int64_t parts = 1;
  for (std::size_t a = 0; a < mesh.axes.size(); ++a)
    if (axis_code(code, a) == shard(dim)) parts *= mesh.axes[a].size;
  return parts;
}

}  // namespace stowage
