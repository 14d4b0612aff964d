#include "runtime/memory/owners.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <pthread.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "runtime/memory/allocator.h"

namespace stowage::runtime::owners {
namespace {

constexpr std::size_t kRemembered = 1 << 16;  // operators that autograd has numbered, the latest
constexpr std::uint64_t kNoNumber = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kNear = 8;  // an operator whose number is that little smaller will do
constexpr std::size_t kMostOwners = 1 << 16;
constexpr std::size_t kMostSamples = 1 << 14;

thread_local bool tl_unasked = false;
thread_local std::vector<std::uint64_t> tl_updates;  // optimizers in their steps

std::atomic<bool> g_on{false};
std::atomic<c10::Device> g_where{kHost};
std::atomic<bool> g_numbers{false};  // autograd has noted an operator
Lines g_lines;                       // set before g_on, and never again

struct Numbered {
  std::uint64_t number = kNoNumber;
  std::int32_t line = 0;
};

struct Owners {
  std::mutex mutex;
  int begun = 0;
  std::unordered_map<std::uint32_t, OwnerId> ids;  // by line and phase
  std::vector<Held> owners{1};                     // by id, with what each holds now; the first is nobody
  std::vector<std::int64_t> at_peak;               // of each, when the peak was
  bool fresh = false;                              // a new highest, and nothing has died since
  Peak peak;
  std::int64_t updates = 0;
  std::vector<Numbered> numbered{kRemembered};
  std::vector<Sample> samples;
  std::uint64_t changes = 0, every = 1;
};

Owners& all() {
  static auto* const owners = new Owners();  // blocks die after the end of main
  return *owners;
}

std::int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Under the lock, as all below.
void take_copy(Owners& o) {
  if (!o.fresh) return;
  o.fresh = false;
  o.at_peak.resize(o.owners.size());
  for (std::size_t i = 0; i < o.owners.size(); ++i) o.at_peak[i] = o.owners[i].bytes;
}

// `line`: 0 where a block has come back that some line asked for before.
void note_live(Owners& o, std::int64_t live, Phase phase, std::int32_t line) {
  std::int64_t& most = o.peak.of_phase[static_cast<std::size_t>(phase)];
  most = std::max(most, live);
  if (live <= o.peak.bytes) return;
  o.fresh = true;
  o.peak.bytes = live;
  o.peak.phase = phase;
  o.peak.line = line;
  o.peak.update = o.updates;
}

void note_sample(Owners& o) {
  if (++o.changes % o.every != 0) return;
  if (o.samples.size() == kMostSamples) {
    // Of each two neighbours the larger stays, so that peaks do
    std::size_t kept = 0;
    for (std::size_t i = 0; i + 1 < o.samples.size(); i += 2) {
      const Sample &a = o.samples[i], &b = o.samples[i + 1];
      o.samples[kept++] = a.live_bytes > b.live_bytes ? a : b;
    }
    o.samples.resize(kept);
    o.every *= 2;
  }
  o.samples.push_back({clock_ns(), live_bytes(g_where.load())});
}

OwnerId owner_of(Owners& o, std::int32_t line, Phase phase) {
  const std::uint32_t key = (static_cast<std::uint32_t>(line) << 2) | static_cast<std::uint32_t>(phase);
  const auto known = o.ids.find(key);
  if (known != o.ids.end()) return known->second;
  if (o.owners.size() >= kMostOwners) return kNobody;
  o.owners.push_back({.line = line, .phase = phase});
  return o.ids[key] = static_cast<OwnerId>(o.owners.size() - 1);
}

// The number that autograd has given the operator under way, or would give the next one.
std::uint64_t latest_number() {
  const std::uint64_t next = at::sequence_number::peek();
  return next == 0 ? 0 : next - 1;
}

std::int32_t line_of_number(const Owners& o, std::uint64_t number) {
  for (std::uint64_t back = 0; back < kNear && back <= number; ++back) {
    const Numbered& known = o.numbered[(number - back) % kRemembered];
    if (known.number == number - back) return known.line;
  }
  return 0;
}

void remember_number(Owners& o, std::int32_t line) {
  const std::uint64_t number = latest_number();
  Numbered& place = o.numbered[number % kRemembered];
  if (place.number != number) place = {number, line};
}

// Of the forward operator whose gradient this thread works out; nothing where it works on none.
std::uint64_t number_under_way() {
  const auto node = torch::autograd::get_current_node();  // of torch 2.13 another pointer than before
  return node ? node->sequence_nr() : kNoNumber;
}

std::string text_of(std::int32_t line) { return line == 0 ? std::string() : g_lines.text(line); }

Phase phase_now() {
  if (torch::autograd::get_current_graph_task_id() >= 0) return Phase::kBackward;
  if (!tl_updates.empty() && !c10::GradMode::is_enabled()) return Phase::kUpdate;
  if (!g_numbers.load(std::memory_order_relaxed) && at::sequence_number::peek() > 0) g_numbers.store(true);
  return g_numbers.load(std::memory_order_relaxed) ? Phase::kForward : Phase::kSetUp;
}

void before_fork() { all().mutex.lock(); }
void after_fork() { all().mutex.unlock(); }

}  // namespace

void survive_forks() {
  static const int registered = pthread_atfork(&before_fork, &after_fork, &after_fork);
  (void)registered;
}

void begin(const Lines& lines, c10::Device where) {
  survive_forks();
  const std::lock_guard lock(all().mutex);
  if (all().begun == 0) g_where.store(where);
  if (g_lines.now == nullptr) g_lines = lines;
  ++all().begun;
  g_on.store(true);
}

void end() {
  const std::lock_guard lock(all().mutex);
  if (--all().begun == 0) g_on.store(false);
}

OwnerId asks(std::int64_t bytes, c10::Device where) {
  if (!g_on.load() || tl_unasked || bytes < kLeastBytes || where != g_where.load()) return kNobody;
  Owners& o = all();
  const Phase phase = phase_now();
  const bool grad_mode = c10::GradMode::is_enabled();
  std::int32_t line = 0;
  if (phase == Phase::kBackward && !grad_mode) {  // else it is a forward pass again, of a checkpoint
    const std::uint64_t number = number_under_way();
    const std::lock_guard lock(o.mutex);
    if (number != kNoNumber) line = line_of_number(o, number);
  }
  if (line == 0) line = g_lines.now();  // may wait for the GIL: no lock is held
  const std::lock_guard lock(o.mutex);
  if (phase == Phase::kForward && grad_mode) remember_number(o, line);
  const OwnerId owner = owner_of(o, line, phase);
  if (owner != kNobody) o.owners[static_cast<std::size_t>(owner)].bytes += bytes;
  note_live(o, live_bytes(g_where.load()), phase, line);
  note_sample(o);
  return owner;
}

void dies(OwnerId owner, std::int64_t bytes) {
  if (owner == kNobody) return;
  Owners& o = all();
  const std::lock_guard lock(o.mutex);
  take_copy(o);
  o.owners[static_cast<std::size_t>(owner)].bytes -= bytes;
  note_sample(o);
}

void moves(OwnerId owner, std::int64_t bytes) {
  if (owner == kNobody) return;
  Owners& o = all();
  const Phase phase = phase_now();
  const std::lock_guard lock(o.mutex);
  o.owners[static_cast<std::size_t>(owner)].bytes += bytes;
  note_live(o, live_bytes(g_where.load()), phase, 0);
  note_sample(o);
}

Peak peak() {
  Owners& o = all();
  const std::lock_guard lock(o.mutex);
  take_copy(o);
  Peak peak = o.peak;
  for (std::size_t i = 1; i < o.at_peak.size(); ++i) {
    if (o.at_peak[i] <= 0) continue;
    peak.held.push_back(o.owners[i]);
    peak.held.back().bytes = o.at_peak[i];
  }
  std::stable_sort(peak.held.begin(), peak.held.end(), [](const Held& a, const Held& b) { return a.bytes > b.bytes; });
  return peak;
}

std::vector<Sample> curve() {
  const std::lock_guard lock(all().mutex);
  return all().samples;
}

std::int64_t updates() {
  const std::lock_guard lock(all().mutex);
  return all().updates;
}

void forget() {
  Owners& o = all();
  const std::lock_guard lock(o.mutex);
  o.peak = {};
  o.at_peak.clear();
  o.fresh = false;
  o.samples.clear();
  o.every = 1;
  o.updates = 0;
  for (Held& owner : o.owners) owner.between_bytes = owner.grown = 0;
}

std::string line_of(OwnerId owner) {
  std::unique_lock lock(all().mutex);
  const std::int32_t line = all().owners[static_cast<std::size_t>(owner)].line;
  lock.unlock();
  return text_of(line);
}

std::string line_of_gradient() {
  const std::uint64_t number = number_under_way();
  if (!g_on.load() || number == kNoNumber) return {};
  std::unique_lock lock(all().mutex);
  const std::int32_t line = line_of_number(all(), number);
  lock.unlock();
  return text_of(line);
}

void update_begins(std::uint64_t optimizer) {
  if (std::find(tl_updates.begin(), tl_updates.end(), optimizer) == tl_updates.end()) tl_updates.push_back(optimizer);
}

void update_ends(std::uint64_t optimizer) {
  const auto began = std::find(tl_updates.begin(), tl_updates.end(), optimizer);
  if (began == tl_updates.end()) return;
  tl_updates.erase(began, tl_updates.end());
  Owners& o = all();
  const std::lock_guard lock(o.mutex);
  ++o.updates;
  for (Held& owner : o.owners) {
    if (owner.bytes != owner.between_bytes) owner.grown = owner.bytes > owner.between_bytes ? owner.grown + 1 : 0;
    owner.between_bytes = owner.bytes;
  }
}

Unasked::Unasked() : before(tl_unasked) { tl_unasked = true; }
Unasked::~Unasked() { tl_unasked = before; }
Asked::Asked() : before(tl_unasked) { tl_unasked = false; }
Asked::~Asked() { tl_unasked = before; }

}  // namespace stowage::runtime::owners
