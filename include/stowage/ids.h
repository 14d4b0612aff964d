// Strong index types. An id is a position in a dense vector; ids of different kinds do not mix.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ranges>
#include <utility>
#include <vector>

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

// A vector indexed by ids of one kind: IdVector<BufferId, Lifetime> live(graph.buffers.size());  live[buffer].to
template <class IdType, class T>
class IdVector {
 public:
  IdVector() = default;
  explicit IdVector(std::size_t size, const T& value = T()) : items_(size, value) {}

  decltype(auto) operator[](IdType id) { return items_[id.index()]; }
  decltype(auto) operator[](IdType id) const { return items_[id.index()]; }

  [[nodiscard]] std::size_t size() const { return items_.size(); }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }
  // Every id that it has an item for: for (const BufferId b : live.ids())
  [[nodiscard]] auto ids() const {
    return std::views::iota(std::size_t{0}, size()) | std::views::transform([](std::size_t i) { return IdType(i); });
  }

  void push_back(T item) { items_.push_back(std::move(item)); }
  void resize(std::size_t size) { items_.resize(size); }
  [[nodiscard]] const std::vector<T>& raw() const { return items_; }

 private:
  std::vector<T> items_;
};

}  // namespace stowage

template <class Tag>
struct std::hash<stowage::Id<Tag>> {
  std::size_t operator()(stowage::Id<Tag> id) const noexcept { return std::hash<std::int32_t>{}(id.value); }
};
