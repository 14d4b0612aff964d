#pragma once

#include <cstdint>
#include <vector>

#include "stowage/sharding.h"

namespace stowage::testing {

// Axes of these sizes, all with the same link.
inline Mesh mesh_of(const std::vector<std::int32_t>& sizes) {
  Mesh mesh;
  for (const std::int32_t size : sizes)
    mesh.axes.push_back({.name = "", .size = size, .latency_ns = 1000, .gbps = 100});
  return mesh;
}

}  // namespace stowage::testing
