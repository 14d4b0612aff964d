// A storage of torch 2.11 can refuse to be read, and cannot be told to allow it again: the flag is private. An explicit
// instantiation may name a private member, so a friend that it brings along can write to it.
//
//   Open<&StorageImpl::flag>  ──instantiated──►  refuses_reads(storage), a function like any other
#include "runtime/torch/torch_versions.h"

#include <torch/headeronly/version.h>

namespace stowage::runtime::torch_versions {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 12

namespace {

bool& refuses_reads(c10::StorageImpl& storage);

template <bool c10::StorageImpl::* Flag>
struct Open {
  friend bool& refuses_reads(c10::StorageImpl& storage) { return storage.*Flag; }
};

template struct Open<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

void allow_reads_of_2_11(c10::StorageImpl& storage) {
  refuses_reads(storage) = false;
  storage.get_extra_meta().custom_data_ptr_error_msg_.reset();
}

#else

void allow_reads_of_2_11(c10::StorageImpl&) {}

#endif

}  // namespace stowage::runtime::torch_versions
