#include "runtime/torch/kernel_settings.h"

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <iterator>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stowage::runtime {
namespace {

at::Context& context() { return at::globalContext(); }

struct Flag {
  const char* name;
  bool (*get)();
  void (*set)(bool);
};

// clang-format off
constexpr Flag kAllFlags[] = {
    {"oneDNN enabled", [] { return context().userEnabledMkldnn(); }, [](bool on) { context().setUserEnabledMkldnn(on); }},
    {"oneDNN deterministic", [] { return context().deterministicMkldnn(); }, [](bool on) { context().setDeterministicMkldnn(on); }},
    {"NNPACK enabled", [] { return context().userEnabledNNPACK(); }, [](bool on) { context().setUserEnabledNNPACK(on); }},
    {"cuDNN enabled", [] { return context().userEnabledCuDNN(); }, [](bool on) { context().setUserEnabledCuDNN(on); }},
    {"cuDNN benchmark", [] { return context().benchmarkCuDNN(); }, [](bool on) { context().setBenchmarkCuDNN(on); }},
    {"cuDNN deterministic", [] { return context().deterministicCuDNN(); }, [](bool on) { context().setDeterministicCuDNN(on); }},
    {"deterministic algorithms", [] { return context().deterministicAlgorithms(); },
     [](bool on) { context().setDeterministicAlgorithms(on, context().deterministicAlgorithmsWarnOnly()); }},
    {"deterministic algorithms only warn", [] { return context().deterministicAlgorithmsWarnOnly(); },
     [](bool on) { context().setDeterministicAlgorithms(context().deterministicAlgorithms(), on); }},
    {"uninitialized memory is filled", [] { return context().deterministicFillUninitializedMemory(); },
     [](bool on) { context().setDeterministicFillUninitializedMemory(on); }},
    {"fp16 reduction", [] { return context().allowFP16ReductionCPU(); }, [](bool on) { context().setAllowFP16ReductionCPU(on); }},
    {"fp16 accumulation", [] { return context().allowFP16AccumulationCuBLAS(); },
     [](bool on) { context().setAllowFP16AccumulationCuBLAS(on); }},
    {"flash attention", [] { return context().userEnabledFlashSDP(); }, [](bool on) { context().setSDPUseFlash(on); }},
    {"flash attention 3", [] { return context().userEnabledFA3SDP(); }, [](bool on) { context().setSDPUseFA3(on); }},
    {"memory-efficient attention", [] { return context().userEnabledMemEfficientSDP(); },
     [](bool on) { context().setSDPUseMemEfficient(on); }},
    {"attention by formula", [] { return context().userEnabledMathSDP(); }, [](bool on) { context().setSDPUseMath(on); }},
    {"cuDNN's attention", [] { return context().userEnabledCuDNNSDP(); }, [](bool on) { context().setSDPUseCuDNN(on); }},
    {"overrideable attention", [] { return context().userEnabledOverrideableSDP(); },
     [](bool on) { context().setSDPUseOverrideable(on); }},
    {"reduced reduction of attention", [] { return context().allowFP16BF16ReductionMathSDP(); },
     [](bool on) { context().setAllowFP16BF16ReductionMathSDP(on); }},
    {"denormals are flushed", flushes_denormals, [](bool on) { context().setFlushDenormal(on); }},
};
// clang-format on

using Of = at::Float32Op;
constexpr std::pair<at::Float32Backend, at::Float32Op> kPrecisions[] = {
    {at::Float32Backend::GENERIC, Of::ALL},  {at::Float32Backend::CUDA, Of::ALL},
    {at::Float32Backend::CUDA, Of::CONV},    {at::Float32Backend::CUDA, Of::RNN},
    {at::Float32Backend::CUDA, Of::MATMUL},  {at::Float32Backend::MKLDNN, Of::ALL},
    {at::Float32Backend::MKLDNN, Of::CONV},  {at::Float32Backend::MKLDNN, Of::RNN},
    {at::Float32Backend::MKLDNN, Of::MATMUL}};
constexpr const char* kMatmul[] = {"highest", "high", "medium"};

// The older name throws where a program has used the newer one, too: then that one says all.
std::uint8_t matmul_precision() {
  try {
    return static_cast<std::uint8_t>(context().float32MatmulPrecision());
  } catch (const c10::Error&) {
    return static_cast<std::uint8_t>(std::size(kMatmul));
  }
}

}  // namespace

bool flushes_denormals() {
#if defined(__x86_64__)
  return (_mm_getcsr() & 0x8040U) != 0;  // flush to zero, or denormals are zeros
#else
  return false;  // there is no way to ask
#endif
}

KernelSettings KernelSettings::now() {
  static_assert(std::size(kAllFlags) == kFlags);
  KernelSettings found;
  for (std::size_t i = 0; i < std::size(kAllFlags); ++i) found.flags_[i] = kAllFlags[i].get();
  static_assert(std::size(kPrecisions) == kPrecisionCount);
  for (std::size_t i = 0; i < kPrecisionCount; ++i)
    found.precision_[i] =
        static_cast<std::uint8_t>(context().float32Precision(kPrecisions[i].first, kPrecisions[i].second));
  found.matmul_ = matmul_precision();
  found.fp16_reduction_ = static_cast<std::uint8_t>(context().allowFP16ReductionCuBLAS());
  found.bf16_reduction_ = static_cast<std::uint8_t>(context().allowBF16ReductionCuBLAS());
  found.linalg_ = static_cast<std::uint8_t>(context().linalgPreferredBackend());
  found.blas_ = static_cast<std::uint8_t>(context().blasPreferredBackend());
  found.default_dtype_ = static_cast<std::uint16_t>(c10::get_default_dtype_as_scalartype());
  found.threads_ = kernel_threads();
  return found;
}

void KernelSettings::apply(const KernelSettings& now) const {
  if (*this == now) return;
  for (std::size_t i = 0; i < std::size(kAllFlags); ++i) {
    if (flags_[i] != now.flags_[i]) kAllFlags[i].set(flags_[i]);
  }
  // It sets the precision of some products; what is left of them comes after it
  if (matmul_ != now.matmul_ && matmul_ < std::size(kMatmul)) context().setFloat32MatmulPrecision(kMatmul[matmul_]);
  for (std::size_t i = 0; i < kPrecisionCount; ++i) {
    const auto& [backend, op] = kPrecisions[i];
    const auto precision = static_cast<at::Float32Precision>(precision_[i]);
    if (context().float32Precision(backend, op) != precision) context().setFloat32Precision(backend, op, precision);
  }
  const auto reduces = [](std::uint8_t option) { return option == 0; };
  const auto splits = [](std::uint8_t option) { return option < 2; };
  if (fp16_reduction_ != now.fp16_reduction_)
    context().setAllowFP16ReductionCuBLAS(reduces(fp16_reduction_), splits(fp16_reduction_));
  if (bf16_reduction_ != now.bf16_reduction_)
    context().setAllowBF16ReductionCuBLAS(reduces(bf16_reduction_), splits(bf16_reduction_));
  if (linalg_ != now.linalg_) context().setLinalgPreferredBackend(static_cast<at::LinalgBackend>(linalg_));
  if (blas_ != now.blas_) context().setBlasPreferredBackend(static_cast<at::BlasBackend>(blas_));
  if (default_dtype_ != now.default_dtype_)
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<at::ScalarType>(default_dtype_)));
  if (threads_.mkl != now.threads_.mkl || threads_.openmp != now.threads_.openmp) set_kernel_threads(threads_);
}

std::string KernelSettings::difference(const KernelSettings& other) const {
  for (std::size_t i = 0; i < std::size(kAllFlags); ++i) {
    if (flags_[i] != other.flags_[i]) return kAllFlags[i].name;
  }
  if (threads_ != other.threads_) return "the number of threads";
  if (default_dtype_ != other.default_dtype_) return "the default dtype";
  if (linalg_ != other.linalg_ || blas_ != other.blas_) return "the preferred library";
  return "the precision of fp32";
}

SettingsScope::SettingsScope(const std::vector<KernelSettings>& all, std::int32_t which) {
  if (all.size() < 2) return;
  found_ = KernelSettings::now();
  made_ = &all[static_cast<std::size_t>(which)];
  made_->apply(found_);
}

SettingsScope::SettingsScope(const KernelSettings& wanted) : made_(&wanted), found_(KernelSettings::now()) {
  made_->apply(found_);
}

SettingsScope::~SettingsScope() {
  if (made_ != nullptr) found_.apply(*made_);
}

std::int32_t settings_now(std::vector<KernelSettings>& all, std::int32_t latest) {
  const KernelSettings now = KernelSettings::now();
  if (!all.empty() && now == all[static_cast<std::size_t>(latest)]) return latest;
  const auto it = std::find(all.begin(), all.end(), now);
  if (it != all.end()) return static_cast<std::int32_t>(it - all.begin());
  all.push_back(now);
  return static_cast<std::int32_t>(all.size()) - 1;
}

}  // namespace stowage::runtime
