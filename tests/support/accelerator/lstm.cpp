// LSTM and GRU cells: PyTorch asks a device that is not the CPU for fused cells, for which the CPU has no kernel.
// Here a fused cell is made of plain ops, through which autograd finds its way by itself.
//
//   LSTM   i f g o = gates        c' = σ(f)·c + σ(i)·tanh(g)        h' = σ(o)·tanh(c')
//   GRU    r z n   = gates        h' = n + z·(h - n)                n = tanh(n_x + σ(r)·n_h)
//
// Not the bits of the CPU, which adds the biases in its matrix products; but the same bits each time.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace standin {
namespace {

using Bias = std::optional<at::Tensor>;

at::Tensor with(const at::Tensor& gates, const Bias& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& of_input, const at::Tensor& of_hidden,
                                                         const at::Tensor& cell, const Bias& input_bias,
                                                         const Bias& hidden_bias) {
  const auto gates = (with(of_input, input_bias) + with(of_hidden, hidden_bias)).chunk(4, 1);
  const at::Tensor next = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * next.tanh(), next, at::empty({0}, cell.options())};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& of_input, const at::Tensor& of_hidden,
                                            const at::Tensor& hidden, const Bias& input_bias, const Bias& hidden_bias) {
  const auto x = with(of_input, input_bias).chunk(3, 1);
  const auto h = with(of_hidden, hidden_bias).chunk(3, 1);
  const at::Tensor n = (x[2] + (x[0] + h[0]).sigmoid() * h[2]).tanh();
  return {n + (x[1] + h[1]).sigmoid() * (hidden - n), at::empty({0}, hidden.options())};
}

}  // namespace
}  // namespace standin

#define STANDIN_CELLS(key)                                \
  TORCH_LIBRARY_IMPL(aten, key, m) {                      \
    m.impl("_thnn_fused_lstm_cell", &standin::lstm_cell); \
    m.impl("_thnn_fused_gru_cell", &standin::gru_cell);   \
  }
STANDIN_CELLS(PrivateUse1)
STANDIN_CELLS(AutogradPrivateUse1)
