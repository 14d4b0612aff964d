// scaled_dot_product_attention chooses as it does on the CPU.
//
//   composite sdpa ──► choice for the device (here) ──► flash: _scaled_dot_product_flash_attention_for_cpu, on twins
//                                                   └─► math: its ops, one by one
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

namespace at::native {
namespace {

std::int64_t choose_as_cpu(const Tensor& query, const Tensor& key, const Tensor& value,
                           const std::optional<Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                           bool grouped) {
  return _fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped);
}

}  // namespace

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_as_cpu)

}  // namespace at::native
