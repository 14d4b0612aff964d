// Clocks of vectors for streams, and the last accesses of ranges (see order.h).
#include "order.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "settings.h"

namespace standin::order {
namespace {

struct Access {
  c10::StreamId stream = 0;
  std::int64_t time = 0;  // 0: none
  std::string name;
};

struct Range {
  std::uintptr_t end = 0;
  Access write;
  std::vector<Access> reads;  // since; at most one a stream
};

struct State {
  std::mutex mutex;
  std::array<Clock, std::tuple_size_v<Clock>> streams{};
  Clock host{};
  std::map<std::uintptr_t, Range> ranges;  // by begin; disjoint
  std::string first;                       // race
};

State& state() {
  static auto* const s = new State();
  return *s;
}
thread_local std::string tl_name;

bool on() { return settings().check_order; }
std::size_t index(c10::StreamId id) { return static_cast<std::size_t>(id); }

void join(Clock& clock, const Clock& other) {
  std::ranges::transform(clock, other, clock.begin(), [](auto a, auto b) { return std::max(a, b); });
}

using Place = std::map<std::uintptr_t, Range>::iterator;

// Makes `at` a border between ranges.
void cut(State& s, std::uintptr_t at) {
  auto it = s.ranges.upper_bound(at);
  if (it == s.ranges.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Range tail = it->second;
  it->second.end = at;
  s.ranges[at] = std::move(tail);
}

// Calls f for all ranges that make up [begin, end), which are made where there are none.
template <class F>
void for_each(State& s, std::uintptr_t begin, std::uintptr_t end, const F& f) {
  cut(s, begin);
  cut(s, end);
  auto it = s.ranges.lower_bound(begin);
  for (std::uintptr_t at = begin; at < end;) {
    if (it == s.ranges.end() || it->first > at) {
      Range hole;
      hole.end = it == s.ranges.end() ? end : std::min(end, it->first);
      it = s.ranges.emplace_hint(it, at, std::move(hole));
    }
    f(it->second);
    at = it->second.end;
    ++it;
  }
}

void must_follow(State& s, const Access& now, const Access& before, const char* what) {
  if (before.time == 0 || s.streams[index(now.stream)][index(before.stream)] >= before.time) return;
  counters().races.fetch_add(1);
  if (!s.first.empty()) return;
  s.first = now.name + " on stream " + std::to_string(now.stream) + what + before.name + " on stream " +
            std::to_string(before.stream) + ", and does not wait for it";
}

void access(const void* address, std::size_t bytes, bool write) {
  if (!on() || bytes == 0) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const c10::StreamId stream = current_stream();
  const Access now{stream, s.streams[index(stream)][index(stream)], tl_name};
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  for_each(s, begin, begin + bytes, [&](Range& range) {
    must_follow(s, now, range.write, write ? " overwrites the result of " : " reads the result of ");
    if (write) {
      for (const Access& read : range.reads) must_follow(s, now, read, " overwrites what is read by ");
      range.reads.clear();
      range.write = now;
    } else {
      std::erase_if(range.reads, [&](const Access& read) { return read.stream == stream; });
      range.reads.push_back(now);
    }
  });
}

void access(const at::Tensor& tensor, bool write) {
  if (!on()) return;
  const Bytes bytes = bytes_of(tensor);
  access(bytes.from, bytes.bytes, write);
}

}  // namespace

Bytes bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return {};
  std::int64_t elements = 1;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) elements += (tensor.size(i) - 1) * tensor.stride(i);
  const auto item = static_cast<std::int64_t>(tensor.itemsize());
  const void* const data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  if (data == nullptr) return {};  // one that must not be read, of which this is a view
  return {static_cast<const char*>(data) + tensor.storage_offset() * item, static_cast<std::size_t>(elements * item)};
}

void restart() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.streams = {};
  s.host = {};
  s.ranges.clear();
  s.first.clear();
}

void begin_operation(const std::string& name) {
  if (!on()) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  tl_name = name;
  Clock& clock = s.streams[index(current_stream())];
  join(clock, s.host);
  ++clock[index(current_stream())];
}

void reads(const void* from, std::size_t bytes) { access(from, bytes, /*write=*/false); }
void writes(const void* to, std::size_t bytes) { access(to, bytes, /*write=*/true); }
void reads(const at::Tensor& tensor) { access(tensor, /*write=*/false); }
void writes(const at::Tensor& tensor) { access(tensor, /*write=*/true); }

Clock given_to(c10::StreamId stream) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.streams[index(stream)];
}

void stream_waits(c10::StreamId stream, const Clock& until) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  join(s.streams[index(stream)], until);
}

void host_waits(const Clock& until) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  join(s.host, until);
}

void forget(const void* from, std::size_t bytes, const std::vector<c10::StreamId>& streams) {
  if (!on()) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto goes = [&](const Access& a) { return streams.empty() || std::ranges::count(streams, a.stream) > 0; };
  const auto begin = reinterpret_cast<std::uintptr_t>(from);
  for_each(s, begin, begin + bytes, [&](Range& range) {
    if (goes(range.write)) range.write = {};
    std::erase_if(range.reads, goes);
  });
  // Neighbours that keep nothing go.
  for (auto it = s.ranges.lower_bound(begin); it != s.ranges.end() && it->first < begin + bytes;) {
    it = it->second.write.time == 0 && it->second.reads.empty() ? s.ranges.erase(it) : std::next(it);
  }
}

}  // namespace standin::order

STANDIN_FACE void standin_set_check_order(int on) {
  if (on != 0 && !standin::settings().check_order) standin::order::restart();
  standin::settings().check_order = on != 0;
}

// The first race since the check was switched on, as text; its length is returned.
STANDIN_FACE int standin_first_race(char* to, int room) {
  auto& s = standin::order::state();
  const std::lock_guard lock(s.mutex);
  const auto n = std::min<std::size_t>(s.first.size(), static_cast<std::size_t>(room));
  s.first.copy(to, n);
  return static_cast<int>(n);
}
