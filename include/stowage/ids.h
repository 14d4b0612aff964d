// Strong index types. An id is a position in a dense vector; ids of different kinds do not mix.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace stowage {

template <class Tag>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}
  constexpr explicit Id(std::size_t v) : value(static_cast<std::int32_t>(v)) {}

  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
  constexpr auto operator<=>(const Id&) const = default;
};

using BufferId = Id<struct BufferTag>;  // position in Graph::buffers
using OpId = Id<struct OpTag>;          // position in Graph::ops, which is program order

}  // namespace stowage

template <class Tag>
struct std::hash<stowage::Id<Tag>> {
  std::size_t operator()(stowage::Id<Tag> id) const noexcept { return std::hash<std::int32_t>{}(id.value); }
};
