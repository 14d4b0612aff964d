// Where versions of torch differ, 2.11 to 2.13: what has two names, or is missing from some, is asked for here and
// nowhere else.
//
//   in c10d::ProcessGroup     2.13: all_gather_single, ...       before: _allgather_base, ...
//   in c10::StorageImpl       2.13: set_materializer             before: nothing like it: a pointer that C++ keeps is unseen
//                             2.12: clear_data_ptr_access_...    before: a flag of its own (torch_versions.cpp)
//   in c10::intrusive_ptr     2.13: one word counts references and knows of a Python object
//   in autograd::Node         2.13: counted by itself            before: held by std::shared_ptr
//
// The compiler is asked what there is, not which version it is: each function is a template, so that `requires` may
// find nothing.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/ExclusivelyOwnedTensorTraits.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace stowage::runtime::torch_versions {
struct CountOfReferences;
}

// The one friend of the count that may be somebody else's.
template <>
struct c10::ExclusivelyOwnedTensorTraits<stowage::runtime::torch_versions::CountOfReferences> {
  // There is one, and it is a Python object's.
  template <class Target>
  static bool only_python(Target& target) {
    if constexpr (requires { c10::detail::has_pyobject(target.combined_refcount_.load()); }) {
      const std::uint64_t count = target.combined_refcount_.load(std::memory_order_relaxed);
      return c10::detail::refcount(count) == 1 && c10::detail::has_pyobject(count);
    } else {
      return false;
    }
  }

  // A Python object stands for it, which has a reference that counts.
  template <class Target>
  static bool python_has(Target& target) {
    if constexpr (requires { c10::detail::has_pyobject(target.combined_refcount_.load()); }) {
      return c10::detail::has_pyobject(target.combined_refcount_.load(std::memory_order_relaxed));
    } else {
      return false;
    }
  }

  // Takes a reference unless there is none, or none but that of a Python object. False when it has not. Never waits,
  // nor takes the GIL.
  template <class Target>
  static bool take(Target& target) {
    if constexpr (requires { c10::detail::has_pyobject(target.combined_refcount_.load()); }) {
      std::uint64_t count = target.combined_refcount_.load(std::memory_order_relaxed);
      do {
        const std::uint32_t references = c10::detail::refcount(count);
        if (references == 0 || (references == 1 && c10::detail::has_pyobject(count))) return false;
      } while (!target.combined_refcount_.compare_exchange_weak(count, count + c10::detail::kReferenceCountOne,
                                                                std::memory_order_acquire, std::memory_order_relaxed));
      return true;
    } else {
      return c10::raw::weak_intrusive_ptr::lock(&target) != nullptr;
    }
  }
};

namespace stowage::runtime::torch_versions {

// A strong reference to a storage that another thread may be letting go of right now; empty when it has, or only a
// Python object is left that has one. The caller has a weak reference.
template <class Storage>
c10::intrusive_ptr<Storage> hold(Storage* storage) {
  if (!c10::ExclusivelyOwnedTensorTraits<CountOfReferences>::take(*storage)) return {};
  return c10::intrusive_ptr<Storage>::reclaim(storage);
}

template <class Storage>
bool only_python_has(Storage& storage) {
  return c10::ExclusivelyOwnedTensorTraits<CountOfReferences>::only_python(storage);
}

template <class Storage>
bool python_has(Storage& storage) {
  return c10::ExclusivelyOwnedTensorTraits<CountOfReferences>::python_has(storage);
}

// ---- Autograd

// A node of autograd's, in the kind of pointer that an edge has.
template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  } else {
    return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
  }
}

// ---- Process groups

template <class Group>
auto all_gather(Group& group, at::Tensor& to, at::Tensor& from) {
  if constexpr (requires { group.all_gather_single(to, from); }) {
    return group.all_gather_single(to, from);
  } else {
    return group._allgather_base(to, from);
  }
}

template <class Group, class Options>
auto reduce_scatter(Group& group, at::Tensor& to, at::Tensor& from, const Options& options) {
  if constexpr (requires { group.reduce_scatter_single(to, from, options); }) {
    return group.reduce_scatter_single(to, from, options);
  } else {
    return group._reduce_scatter_base(to, from, options);
  }
}

template <class Group>
auto all_to_all(Group& group, at::Tensor& to, at::Tensor& from, std::vector<std::int64_t>& to_rows,
                std::vector<std::int64_t>& from_rows) {
  if constexpr (requires { group.all_to_all_single(to, from, to_rows, from_rows); }) {
    return group.all_to_all_single(to, from, to_rows, from_rows);
  } else {
    return group.alltoall_base(to, from, to_rows, from_rows);
  }
}

// ---- Storages that call back when a pointer to write through is taken, and whose reads can be refused for a while

template <class Storage>
concept CallsBack = requires(Storage& storage, void (*function)(Storage*)) {
  storage.set_materializer(function);
  storage.clear_materializer();
};

// Where there are none, these two do nothing: what keeps an address of a storage must be known otherwise.
template <class Storage>
void call_back(Storage& storage, void (*function)(Storage*)) {
  if constexpr (CallsBack<Storage>) {
    if (!storage.has_materializer()) storage.set_materializer(function);
  }
}

template <class Storage>
void do_not_call_back(Storage& storage) {
  if constexpr (CallsBack<Storage>) storage.clear_materializer();
}

void allow_reads_of_2_11(c10::StorageImpl& storage);

// Reads of a storage raise an error with this text, until they are allowed again. Then it gets a pointer.
inline void refuse_reads(c10::StorageImpl& storage, const std::string& text) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(text);
}

template <class Storage>
void allow_reads(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    allow_reads_of_2_11(storage);
  }
}

}  // namespace stowage::runtime::torch_versions
