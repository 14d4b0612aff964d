// The lock of the graph, which nobody may hold while Python runs.
//
//   thread A   lock ── last C++ reference to a tensor that has a Python object goes: wants the GIL ──┐
//   thread B   has the GIL, frees a tensor: its block's death wants the lock ─────────────────────────┴─ neither goes on
//
// So references that may be such are handed to the lock, which lets go of them when it is free, and the lock of those
// that bring tensors back is, too: an extension may run ops, and wait for it, with the GIL. Recursive; a fork finds it
// held by the thread that forks (fork.cpp), and the child makes it anew.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <vector>

namespace stowage::runtime::evict {

class StateLock {
 public:
  static inline thread_local int tl_letting_nothing_go = 0;

  void lock() {
    mutex_.lock();
    ++depth_;
  }

  void unlock() {
    if (--depth_ > 0 || tl_letting_nothing_go > 0 || (storages_.empty() && tensors_.empty())) return mutex_.unlock();
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages = std::move(storages_);
    std::vector<at::Tensor> tensors = std::move(tensors_);
    storages_.clear();
    tensors_.clear();
    mutex_.unlock();
  }

  // While it is held.
  void let_go_after(c10::intrusive_ptr<c10::StorageImpl> storage) { storages_.push_back(std::move(storage)); }
  void let_go_after(at::Tensor tensor) { tensors_.push_back(std::move(tensor)); }

 private:
  std::recursive_mutex mutex_;
  int depth_ = 0;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages_;
  std::vector<at::Tensor> tensors_;
};

// Of the thread that brings tensors back. Recursive.
class RestoringLock {
 public:
  explicit RestoringLock(StateLock& state) : state_(state) {}

  void lock() {
    mutex_.lock();
    ++StateLock::tl_letting_nothing_go;
  }

  void unlock() {
    const bool last = --StateLock::tl_letting_nothing_go == 0;
    mutex_.unlock();
    if (!last) return;
    state_.lock();
    state_.unlock();
  }

 private:
  std::recursive_mutex mutex_;
  StateLock& state_;
};

}  // namespace stowage::runtime::evict
