// Digests: do two runs of a step leave the same bits, without keeping a copy of them?
//
//   words     w0 w1 w2 w3 | w4 w5 w6 w7 | …       four lanes, each  lane <- rotate((lane xor word) * odd)
//   lanes     a  b  c  d    a  b  c  d
//
// Each lane's step is a bijection of the lane for a given word, and of the word for a given lane: a difference in one
// word always shows; differences in several hide with probability 2^-64. Not meant against an adversary.
//
// Of what lies on an accelerator, sums are made there (Device::sums()), and the digest is of these: all of it need not
// come to the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/torch/generator.h"

namespace stowage::runtime {

using Digest = std::array<std::uint64_t, 4>;

Digest digest(const void* data, std::int64_t bytes);                     // on the host
Digest digest(const void* data, std::int64_t bytes, c10::Device where);  // waits for the kernels there
// Of the first bytes of a storage.
inline Digest digest(const c10::Storage& storage, std::int64_t bytes) {
  return digest(storage.data(), bytes, storage.device());
}
inline Digest digest(const c10::Storage& storage) {
  return digest(storage, static_cast<std::int64_t>(storage.nbytes()));
}
// Of a tensor's elements, wherever they lie: kernels make storages that are longer (mse_loss), and write no more than these.
Digest digest(const at::Tensor& tensor);

// What a step leaves behind: its changed storages in a fixed order, and the generators that it moves.
struct StateDigest {
  std::vector<Digest> storages;
  GeneratorState generators;

  bool operator==(const StateDigest& other) const {
    return storages == other.storages && generators == other.generators;
  }
};

}  // namespace stowage::runtime
