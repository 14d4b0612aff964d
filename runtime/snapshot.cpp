#include "runtime/snapshot.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

namespace stowage::runtime {

Snapshot::Snapshot(std::vector<c10::Storage> storages) : storages_(std::move(storages)), generator_(GeneratorState::current()) {
  for (const c10::Storage& storage : storages_) {
    contents_.push_back(c10::GetCPUAllocator()->allocate(storage.nbytes()));
    if (storage.nbytes() > 0) std::memcpy(contents_.back().get(), storage.data(), storage.nbytes());
  }
}

void Snapshot::exchange() {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    auto* saved = static_cast<char*>(contents_[i].get());
    std::swap_ranges(saved, saved + storages_[i].nbytes(), static_cast<char*>(storages_[i].mutable_data()));
  }
  const GeneratorState saved = generator_;
  generator_ = GeneratorState::current();
  saved.restore();
}

bool Snapshot::same_as_now() const {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    const std::size_t bytes = storages_[i].nbytes();
    if (bytes > 0 && std::memcmp(storages_[i].data(), contents_[i].get(), bytes) != 0) return false;
  }
  return generator_ == GeneratorState::current();
}

}  // namespace stowage::runtime
