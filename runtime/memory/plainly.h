// Operators that the runtime calls for itself: nobody who looks at operators sees them.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace stowage::runtime {

// While alive, what this thread calls goes straight to the kernels: past autograd, autocast, modes of Python, functorch,
// and the hook (runtime/torch/hook.h).
class Plainly {
 public:
  Plainly() = default;
  Plainly(const Plainly&) = delete;
  Plainly& operator=(const Plainly&) = delete;

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard rest_{
      c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PreDispatch,
                           c10::DispatchKey::PythonDispatcher, c10::DispatchKey::Functionalize,
                           c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::TESTING_ONLY_GenericMode,
                           c10::DispatchKey::Fake})};
};

// A tensor of bytes over memory that lies there.
inline at::Tensor byte_tensor(const void* data, std::int64_t bytes, c10::Device where) {
  return at::for_blob(const_cast<void*>(data), {bytes})
      .options(at::TensorOptions(where).dtype(at::kByte))
      .target_device(where)
      .make_tensor();
}

}  // namespace stowage::runtime
