#include "runtime/replay/arrays.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

namespace stowage::runtime {
namespace {

char* first_byte(const at::Tensor& memory) {
  return static_cast<char*>(memory.storage().mutable_data()) + span_bytes(memory).first;
}

std::size_t count_under(const at::Tensor& memory) {
  const auto [start, end] = span_bytes(memory);
  return static_cast<std::size_t>(end - start);
}

std::string bytes_under(const at::Tensor& memory) {
  const std::size_t bytes = count_under(memory);
  return bytes > 0 ? std::string(first_byte(memory), bytes) : std::string();
}

void put_bytes(const at::Tensor& memory, const std::string& content) {
  if (!content.empty()) std::memcpy(first_byte(memory), content.data(), content.size());
}

bool has_bytes(const at::Tensor& memory, const std::string& content) {
  return content.empty() || std::memcmp(first_byte(memory), content.data(), content.size()) == 0;
}

}  // namespace

std::int64_t ArraysMade::add(const at::Tensor& memory, const at::Tensor& tensor, bool joins) {
  const std::scoped_lock lock(mutex_);
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  std::optional<Shell> copied;
  if (memory.storage().unsafeGetStorageImpl() != storage) copied = watched(tensor.storage());
  made_.push_back({next_, memory, std::move(copied), storage, joins, TensorMeta::of(tensor), bytes_under(memory)});
  return next_++;
}

void ArraysMade::gone(std::int64_t number) {
  std::optional<Made> found;  // dropped without the lock: whose memory it is may have to be asked
  const std::scoped_lock lock(mutex_);
  const auto it = std::find_if(made_.begin(), made_.end(), [&](const Made& made) {
    return made.number == number && has_bytes(made.memory, made.content);
  });
  if (it == made_.end()) return;
  found = std::move(*it);
  made_.erase(it);
}

bool ArraysMade::empty() const {
  const std::scoped_lock lock(mutex_);
  return made_.empty();
}

void ArraysMade::clear() {
  std::vector<Made> dropped;
  const std::scoped_lock lock(mutex_);
  dropped.swap(made_);
}

bool ArraysMade::written() const {
  const std::scoped_lock lock(mutex_);
  return std::any_of(made_.begin(), made_.end(),
                     [](const Made& made) { return !has_bytes(made.memory, made.content); });
}

bool ArraysMade::of(const std::function<bool(const c10::StorageImpl*)>& storage) const {
  const std::scoped_lock lock(mutex_);
  return std::any_of(made_.begin(), made_.end(), [&](const Made& made) { return storage(made.storage); });
}

ArraysMade::Written ArraysMade::take_out() {
  Written written;
  const std::scoped_lock lock(mutex_);
  for (Made& made : made_) {
    if (has_bytes(made.memory, made.content)) continue;
    std::string now = bytes_under(made.memory);
    put_bytes(made.memory, made.content);
    written.parts_.push_back({made.memory, made.copied, made.tensor, std::move(now)});
  }
  return written;
}

bool ArraysMade::taken_back() {
  const std::scoped_lock lock(mutex_);
  bool other = false;
  for (Made& made : made_) {
    if (has_bytes(made.memory, made.content)) continue;
    made.content = bytes_under(made.memory);
    other = true;
  }
  return other;
}

void ArraysMade::join() const {
  const std::scoped_lock lock(mutex_);
  std::set<const c10::StorageImpl*> joined;
  for (const Made& made : made_) {
    if (!made.joins || !is_held(made.copied) || joined.contains(made.storage)) continue;
    const c10::Storage storage(made.copied->lock());
    const bool whole = made.tensor.storage_offset == 0 && make_tensor(storage, made.tensor).is_contiguous() &&
                       storage.nbytes() == made.memory.storage().nbytes();
    if (!whole || storage.nbytes() == 0 || storage.data() == nullptr) continue;
    auto keep = std::make_unique<c10::Storage>(made.memory.storage());
    void* const data = keep->mutable_data();
    std::memcpy(data, storage.data(), storage.nbytes());
    const auto let_go = [](void* context) { delete static_cast<c10::Storage*>(context); };
    joined.insert(made.storage);
    storage.set_data_ptr_noswap(at::DataPtr(data, keep.release(), let_go, storage.device()));
  }
}

void ArraysMade::Written::put_in() const {
  for (const Part& part : parts_) {
    put_bytes(part.memory, part.content);
    if (!is_held(part.copied)) continue;
    const at::AutoDispatchBelowADInplaceOrView below;
    make_tensor(c10::Storage(part.copied->lock()), part.tensor).copy_(part.memory);
  }
}

}  // namespace stowage::runtime
