#include "runtime/replay/digest.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

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

namespace {

constexpr std::int64_t kBroughtBytes = 64 << 10;  // so little is copied to the host in the time of some kernels

Digest digest_on_host(const void* data, std::int64_t bytes, Device& device) {
  std::string content(static_cast<std::size_t>(bytes), '\0');
  if (bytes > 0) device.to_host(content.data(), data, bytes);
  return digest(content.data(), bytes);
}

Digest digest_of(const std::vector<std::int64_t>& words) {
  return digest(words.data(), static_cast<std::int64_t>(words.size() * sizeof(words[0])));
}

}  // namespace

Digest digest(const void* data, std::int64_t bytes, c10::Device where) {
  if (where.is_cpu()) return digest(data, bytes);
  Device& device = device_at(where);
  if (bytes <= kBroughtBytes || reinterpret_cast<std::uintptr_t>(data) % 4 != 0)
    return digest_on_host(data, bytes, device);
  const std::int64_t whole = bytes / device.align_bytes() * device.align_bytes();
  const Device::Sums sums = device.sums(data, whole);
  const std::array<Digest, 3> parts = {digest_of(sums.of_lines), digest_of(sums.of_places),
                                       digest_on_host(static_cast<const char*>(data) + whole, bytes - whole, device)};
  return digest(parts.data(), static_cast<std::int64_t>(sizeof(parts)));
}

Digest digest(const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  return digest(dense.const_data_ptr(), static_cast<std::int64_t>(dense.nbytes()), dense.device());
}

}  // namespace stowage::runtime
