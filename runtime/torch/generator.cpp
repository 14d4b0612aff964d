#include "runtime/torch/generator.h"

#include <ATen/Context.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace stowage::runtime {
namespace {

at::CPUGeneratorImpl* generator() {
  return at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

// Counted under the generator's lock.
std::uint64_t g_restored = 0;
thread_local std::uint64_t tl_restored = 0;

std::atomic<c10::GeneratorImpl*> g_device_generator{nullptr};  // lives as long as the process

}  // namespace

std::string why_not_repeatable(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  try {
    generator.get_offset();
    return {};
  } catch (const c10::Error&) {
    return "the random generator of " + device.str() + " does not tell how far it has come";
  }
}

void watch_generator(c10::Device device) {
  if (!why_not_repeatable(device).empty()) return;
  g_device_generator.store(at::globalContext().defaultGenerator(device).unsafeGetGeneratorImpl());
}

GeneratorState GeneratorState::current() {
  at::CPUGeneratorImpl* impl = generator();
  const std::lock_guard lock(impl->mutex_);
  GeneratorState state(impl->engine());
  state.next_float_normal_ = impl->next_float_normal_sample();
  state.next_double_normal_ = impl->next_double_normal_sample();
  state.others_restored_ = g_restored - tl_restored;
  if (c10::GeneratorImpl* const device = g_device_generator.load()) {
    const std::lock_guard device_lock(device->mutex_);
    state.device_ = Philox{device->current_seed(), device->get_offset()};
  }
  return state;
}

void GeneratorState::restore() const {
  at::CPUGeneratorImpl* impl = generator();
  const std::lock_guard lock(impl->mutex_);
  ++g_restored;
  ++tl_restored;
  impl->set_engine(engine_);
  impl->set_next_float_normal_sample(next_float_normal_);
  impl->set_next_double_normal_sample(next_double_normal_);
  c10::GeneratorImpl* const device = g_device_generator.load();
  if (device == nullptr || !device_) return;
  const std::lock_guard device_lock(device->mutex_);
  if (device->current_seed() != device_->seed) device->set_current_seed(device_->seed);
  if (device->get_offset() != device_->offset) device->set_offset(device_->offset);
}

void GeneratorState::put_back(bool draws) const {
  if (draws) return restore();
  const GeneratorState now = current();
  if (!(now == *this) && !now.follows(*this)) restore();
}

bool GeneratorState::follows(const GeneratorState& before) const {
  if (*this == before) return false;
  if (others_restored_ != before.others_restored_) return true;
  if (device_ && before.device_ && !device_->follows(*before.device_)) return false;
  return same_numbers(before) || engine_follows(before);
}

bool GeneratorState::same_numbers(const GeneratorState& other) const {
  const at::mt19937_data_pod a = engine_.data();
  const at::mt19937_data_pod b = other.engine_.data();
  return a.seed_ == b.seed_ && a.left_ == b.left_ && a.seeded_ == b.seeded_ && a.next_ == b.next_ &&
         std::memcmp(a.state_.data(), b.state_.data(), sizeof(a.state_)) == 0 &&
         next_float_normal_ == other.next_float_normal_ && next_double_normal_ == other.next_double_normal_;
}

// The numbers of a block of 624 come from its state; the next block's is made of it.
bool GeneratorState::engine_follows(const GeneratorState& before) const {
  constexpr int kMostBlocks = 1 << 16;  // 40 million numbers, some 0.1 s
  const at::mt19937_data_pod now = engine_.data();
  at::mt19937 engine = before.engine_;
  at::mt19937_data_pod data = engine.data();
  if (now.seed_ != data.seed_) return false;
  const auto same_block = [&] { return std::memcmp(now.state_.data(), data.state_.data(), sizeof(now.state_)) == 0; };
  if (same_block()) return now.left_ <= data.left_;
  for (int block = 0; block < kMostBlocks; ++block) {
    data.left_ = 1;  // the block's last number is drawn: the next one makes a block
    engine.set_data(data);
    engine();
    data = engine.data();
    if (same_block()) return true;
  }
  return false;
}

// One that was taken before the accelerator was watched knows nothing of it.
bool GeneratorState::operator==(const GeneratorState& other) const {
  return (!device_ || !other.device_ || *device_ == *other.device_) && same_numbers(other);
}

bool GeneratorState::is_seed() const {
  return same_numbers(GeneratorState(at::mt19937(engine_.data().seed_))) && (!device_ || device_->offset == 0);
}

GeneratorState GeneratorState::marked(std::size_t draws, bool on_device) const {
  GeneratorState other = *this;
  if (on_device && other.device_) {
    constexpr std::uint64_t kFar = std::uint64_t{1} << 60;  // no step draws so much, and no seed begins there
    other.device_->seed ^= 0x9E3779B97F4A7C15U * (draws + 1);
    other.device_->offset |= kFar;
    return other;
  }
  at::mt19937_data_pod data = engine_.data();
  data.state_[draws % data.state_.size()] += 1 + static_cast<std::uint32_t>(draws / data.state_.size());
  other.engine_.set_data(data);
  return other;
}

void GeneratorJump::make(const std::vector<std::optional<GeneratorState>>& after_draws) const {
  if (state) state->restore();
  if (draws >= 0) after_draws[static_cast<std::size_t>(draws)]->restore();
}

bool GeneratorJump::operator==(const GeneratorJump& other) const {
  return draws == other.draws && (state == other.state || (state && other.state && *state == *other.state));
}

bool GeneratorJump::same_but_seed(const GeneratorJump& other) const {
  return *this == other || (state && other.state && state->is_seed() && other.state->is_seed());
}

}  // namespace stowage::runtime
