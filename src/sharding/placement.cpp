// Bytes of a part of a tensor, cut as torch.chunk cuts: slices of ceil(size / n), the last ones shorter or empty.
//
//   10 rows over 4 devices: 3 3 3 1       5 over 4: 2 2 1 0       10 over axes (2, 2): 5 5, each then 3 2
#include <algorithm>
#include <limits>

#include "base/concat.h"
#include "stowage/error.h"
#include "stowage/sharding.h"

namespace stowage {

std::int64_t Mesh::devices() const {
  std::int64_t n = 1;
  for (const MeshAxis& axis : axes) n *= axis.size;
  return n;
}

double StageResult::gap() const {
  if (value <= bound) return 0;
  return bound > 0 ? value / bound - 1 : std::numeric_limits<double>::infinity();
}

std::int64_t local_bytes(const ProgramTensor& tensor, const MeshPlacement& placement, const Mesh& mesh,
                         const std::vector<std::int32_t>& coordinate) {
  if (placement.size() != mesh.axes.size() || coordinate.size() != mesh.axes.size())
    throw Error(concat("a placement has ", placement.size(), " parts, the mesh ", mesh.axes.size(), " axes"));
  std::vector<std::int64_t> shape = tensor.shape;
  for (std::size_t a = 0; a < placement.size(); ++a) {
    if (placement[a].kind != AxisPlacement::Kind::kShard) continue;
    const auto dim = static_cast<std::size_t>(placement[a].dim);
    if (dim >= shape.size())
      throw Error(concat("a placement shards dimension ", dim, " of a tensor with ", shape.size()));
    const std::int64_t slice = (shape[dim] + mesh.axes[a].size - 1) / mesh.axes[a].size;
    shape[dim] = std::clamp<std::int64_t>(shape[dim] - slice * coordinate[a], 0, slice);
  }
  std::int64_t bytes = tensor.item_bytes;
  for (const std::int64_t size : shape) bytes *= size;
  return bytes;
}

}  // namespace stowage
