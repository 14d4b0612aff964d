#include "runtime/generator.h"

#include <cstring>
#include <mutex>

namespace stowage::runtime {
namespace {

at::CPUGeneratorImpl* generator() { return at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator()); }

}  // namespace

GeneratorState GeneratorState::current() {
  at::CPUGeneratorImpl* impl = generator();
  const std::lock_guard lock(impl->mutex_);
  GeneratorState state(impl->engine());
  state.next_float_normal_ = impl->next_float_normal_sample();
  state.next_double_normal_ = impl->next_double_normal_sample();
  return state;
}

void GeneratorState::restore() const {
  at::CPUGeneratorImpl* impl = generator();
  const std::lock_guard lock(impl->mutex_);
  impl->set_engine(engine_);
  impl->set_next_float_normal_sample(next_float_normal_);
  impl->set_next_double_normal_sample(next_double_normal_);
}

bool GeneratorState::operator==(const GeneratorState& other) const {
  const at::mt19937_data_pod a = engine_.data();
  const at::mt19937_data_pod b = other.engine_.data();
  return a.seed_ == b.seed_ && a.left_ == b.left_ && a.seeded_ == b.seeded_ && a.next_ == b.next_ &&
         std::memcmp(a.state_.data(), b.state_.data(), sizeof(a.state_)) == 0 &&
         next_float_normal_ == other.next_float_normal_ && next_double_normal_ == other.next_double_normal_;
}

}  // namespace stowage::runtime
