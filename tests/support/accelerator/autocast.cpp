// torch.autocast("standin"): the lists of ops that CUDA has, from ATen itself.
//
//   products, convolutions ──► the lower type     softmax, norms, losses, sums ──► float32     mixed ──► the wider
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

namespace at {  // NOLINT: the names in ATen's macros are relative to it

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define STANDIN_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define STANDIN_FLOAT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define STANDIN_FLOAT_TYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define STANDIN_NORM(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(__VA_ARGS__)
#define STANDIN_WIDER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(STANDIN_LOWER)
  AT_FORALL_FP32(STANDIN_FLOAT)
  AT_FORALL_FP32_SET_OPT_DTYPE(STANDIN_FLOAT_TYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(STANDIN_NORM)
  AT_FORALL_PROMOTE(STANDIN_WIDER)
}

}  // namespace at
