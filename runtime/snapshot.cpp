#include "runtime/snapshot.h"

#include <cstring>
#include <functional>
#include <string_view>

namespace stowage::runtime {
namespace {

std::string_view bytes_of(const c10::Storage& storage) { return {static_cast<const char*>(storage.data()), storage.nbytes()}; }

}  // namespace

Snapshot::Snapshot(std::vector<c10::Storage> storages) : storages_(std::move(storages)), generator_(GeneratorState::current()) {
  for (const c10::Storage& storage : storages_) contents_.emplace_back(bytes_of(storage));
}

void Snapshot::restore() const {
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    std::memcpy(storages_[i].mutable_data(), contents_[i].data(), contents_[i].size());
  }
  generator_.restore();
}

std::vector<std::uint64_t> Snapshot::digests() const {
  std::vector<std::uint64_t> digests;
  for (const c10::Storage& storage : storages_) digests.push_back(std::hash<std::string_view>{}(bytes_of(storage)));
  digests.push_back(GeneratorState::current().digest());
  return digests;
}

}  // namespace stowage::runtime
