// NumPy arrays that a matched step has given its Python, as long as somebody holds them.
//
//   of a tensor that lasts    the array is over the tensor's own memory, so it shows at once what an op writes there
//   of a shell                the array is over a copy of what kernels have made for it; also of a tensor that lasts whose
//                             content waits elsewhere, if the recorded step did not keep the array. When the step ends, the
//                             copy becomes the tensor's memory: who has both may write into one and read the other
//
// Ops are matched before they run, so neither what an op would write under an array nor what Python writes into one can
// wait: the step leaves its tape. What it has matched by then runs on memory as it was handed out; then comes what
// Python has written. Memory is compared before each op while there are arrays: O(their bytes).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/torch/tensors.h"

namespace stowage::runtime {

class ArraysMade {
 public:
  // What Python has written into some.
  class Written {
   public:
    // Once more, where it lies and into the tensor.
    void put_in() const;

   private:
    friend class ArraysMade;
    struct Part {
      at::Tensor memory;
      std::optional<Shell> copied;
      TensorMeta tensor;
      std::string content;
    };
    std::vector<Part> parts_;
  };

  // `memory`: what the array is over; `tensor`: what it was asked of, that or what it is a copy of; `joins`: that is a
  // shell. Its number.
  std::int64_t add(const at::Tensor& memory, const at::Tensor& tensor, bool joins);
  // One that was written stays until take_out().
  void gone(std::int64_t number);
  [[nodiscard]] bool empty() const;
  [[nodiscard]] bool written() const;
  // Was one asked of a tensor with such a storage?
  [[nodiscard]] bool of(const std::function<bool(const c10::StorageImpl*)>& storage) const;
  // Memory is as it was handed out again.
  Written take_out();
  // What kernels have written under them has been taken back, by no fault of Python's. Do some show something else now?
  bool taken_back();
  // After the kernels have run: a copy becomes the memory of what was a shell, where it is all of that and somebody has
  // both. Of several the first one.
  void join() const;
  void clear();

 private:
  struct Made {
    std::int64_t number;
    at::Tensor memory;
    std::optional<Shell> copied;      // the tensor's own storage, where `memory` is another
    const c10::StorageImpl* storage;  // the tensor's own
    bool joins;
    TensorMeta tensor;
    std::string content;  // of the memory, from its first byte to its last
  };
  mutable std::mutex mutex_;  // any thread may be the last to hold an array
  std::vector<Made> made_;
  std::int64_t next_ = 0;
};

}  // namespace stowage::runtime
