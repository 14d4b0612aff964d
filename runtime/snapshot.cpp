#include "runtime/snapshot.h"

#include <algorithm>
#include <string_view>

namespace stowage::runtime {
namespace {

std::string_view bytes_of(const c10::Storage& storage) { return {static_cast<const char*>(storage.data()), storage.nbytes()}; }

}  // namespace

Snapshot::Snapshot(std::vector<c10::Storage> storages) : storages_(std::move(storages)), generator_(GeneratorState::current()) {
  for (const c10::Storage& storage : storages_) contents_.emplace_back(bytes_of(storage));
}

void Snapshot::exchange() {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    std::swap_ranges(contents_[i].begin(), contents_[i].end(), static_cast<char*>(storages_[i].mutable_data()));
  }
  const GeneratorState saved = generator_;
  generator_ = GeneratorState::current();
  saved.restore();
}

bool Snapshot::same_as_now() const {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    if (bytes_of(storages_[i]) != contents_[i]) return false;
  }
  return generator_ == GeneratorState::current();
}

}  // namespace stowage::runtime
