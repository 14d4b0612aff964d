// Bytes as a stream of small decisions: how fuzz targets turn an input into a graph, options, changes of a plan. Each
// decision takes the next byte (or as many as its range needs), so that a change of one byte changes one decision. When
// the bytes have run out, every decision is the lowest: any input means something, and short inputs mean small things.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace stowage::fuzz {

class ByteSource {
 public:
  ByteSource(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }

  // A number in [low, high]; low when no byte is left.
  std::int64_t draw(std::int64_t low, std::int64_t high) {
    const auto range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    std::uint64_t value = 0;
    for (std::uint64_t reach = range; reach > 0; reach >>= 8) value = value << 8 | byte();
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) +
                                     (range == ~std::uint64_t{0} ? value : value % (range + 1)));
  }

  // False when no byte is left.
  bool chance(int percent) { return draw(0, 99) >= 100 - percent; }

  template <class T, std::size_t N>
  const T& pick(const std::array<T, N>& of) {
    return of[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(N) - 1))];
  }

  // All that is left.
  std::string_view rest() {
    const std::string_view all = rest_;
    rest_ = {};
    return all;
  }

 private:
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const char first = rest_.front();
    rest_.remove_prefix(1);
    return static_cast<std::uint8_t>(first);
  }

  std::string_view rest_;
};

}  // namespace stowage::fuzz
