#include "runtime/replay/digest.h"

#include <bit>
#include <cstring>
#include <string>

#include "runtime/memory/device.h"

namespace stowage::runtime {

Digest digest(const void* data, std::int64_t bytes) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio
  Digest lanes = {1, 2, 3, 4};
  const auto mix = [&](const char* words) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      std::uint64_t word = 0;
      std::memcpy(&word, words + lane * sizeof(word), sizeof(word));
      lanes[lane] = std::rotl((lanes[lane] ^ word) * kOdd, 29);
    }
  };
  const char* at = static_cast<const char*>(data);
  const char* end = at + bytes;
  for (; end - at >= static_cast<std::ptrdiff_t>(sizeof(Digest)); at += sizeof(Digest)) mix(at);
  std::array<char, sizeof(Digest)> rest{};
  if (at != end) std::memcpy(rest.data(), at, static_cast<std::size_t>(end - at));
  mix(rest.data());
  const std::array<std::int64_t, 4> length = {bytes, bytes, bytes, bytes};
  mix(reinterpret_cast<const char*>(length.data()));
  return lanes;
}

Digest digest(const void* data, std::int64_t bytes, c10::Device where) {
  if (where.is_cpu() || bytes == 0) return digest(data, bytes);
  std::string content(static_cast<std::size_t>(bytes), '\0');
  device_at(where).to_host(content.data(), data, bytes);
  return digest(content.data(), bytes);
}

}  // namespace stowage::runtime
