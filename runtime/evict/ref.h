// A counted reference for values and recipes. Not atomic: both belong to one graph, and whoever touches it holds the
// graph's lock.
#pragma once

#include <cstdint>
#include <utility>

namespace stowage::runtime::evict {

struct Counted {
  std::int32_t references = 0;
};

template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_ != nullptr) ++object_->references;
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr && --object_->references == 0) delete object_;
  }

  // For references that live outside C++: in a block's header, in the context of an evicted storage.
  [[nodiscard]] T* release() { return std::exchange(object_, nullptr); }
  static Ref adopt(T* object) {
    Ref ref;
    ref.object_ = object;
    return ref;
  }

  [[nodiscard]] T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const Ref& other) const = default;

 private:
  T* object_ = nullptr;
};

}  // namespace stowage::runtime::evict
