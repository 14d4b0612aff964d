// PyTorch's settings that kernels read when they run, and that no argument of theirs shows.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>

#include <string>

namespace stowage::runtime {

// As they are on this thread.
struct KernelSettings {
  c10::ScalarType default_dtype = c10::ScalarType::Float;  // of tensors that are made without one
  int threads = 1;                                         // sums may be split by it
  bool mkldnn = true;
  bool deterministic = false;
  bool deterministic_warns_only = false;
  bool fills_uninitialized = false;

  bool operator==(const KernelSettings&) const = default;

  static KernelSettings now() {
    const at::Context& context = at::globalContext();
    return {.default_dtype = c10::typeMetaToScalarType(c10::get_default_dtype()),
            .threads = at::get_num_threads(),
            .mkldnn = context.userEnabledMkldnn(),
            .deterministic = context.deterministicAlgorithms(),
            .deterministic_warns_only = context.deterministicAlgorithmsWarnOnly(),
            .fills_uninitialized = context.deterministicFillUninitializedMemory()};
  }

  // What is other now, in words; "" for nothing.
  [[nodiscard]] std::string changed() const {
    const KernelSettings other = now();
    if (default_dtype != other.default_dtype) return "the default dtype";
    if (threads != other.threads) return "the number of threads";
    if (mkldnn != other.mkldnn) return "whether oneDNN is used";
    return *this == other ? "" : "whether algorithms are deterministic";
  }
};

}  // namespace stowage::runtime
