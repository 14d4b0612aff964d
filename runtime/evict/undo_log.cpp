#include "runtime/evict/undo_log.h"

#include <utility>

#include "runtime/evict/block.h"

namespace stowage::runtime::evict {

void UndoLog::save(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  const auto bytes = static_cast<std::int64_t>(storage->nbytes());
  if (bytes == 0 || entries_.contains(storage)) return;
  Entry entry;
  entry.bytes = bytes;
  entry.host = heap_.take(bytes);
  if (entry.host == nullptr) return;  // then a failure is as it would be without stowage
  const void* const data = storage->_mutable_data_ptr_no_checks().get();
  if (!state_.on_host()) {
    state_.device.keep(entry.host, data, bytes);
  } else if (!heap_.fill(entry.host, data, bytes)) {
    return heap_.give_back(entry.host, bytes);
  }
  if (bytes < kSmallBytes) entry.small = tensor;
  entries_.emplace(storage, std::move(entry));
}

void UndoLog::let_go(Entry& entry) {
  if (entry.host != nullptr) heap_.give_back(entry.host, entry.bytes);
  if (entry.small.defined()) state_.lock.let_go_after(std::move(entry.small));
}

void UndoLog::forget(c10::StorageImpl* storage) {
  const auto it = entries_.find(storage);
  if (it == entries_.end()) return;
  let_go(it->second);
  entries_.erase(it);
}

void UndoLog::forget_all() {
  for (auto& [storage, entry] : entries_) let_go(entry);
  entries_.clear();
}

}  // namespace stowage::runtime::evict
