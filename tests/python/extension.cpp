// Functions of an extension that look into memory past PyTorch's dispatcher, and one that asks for operators alone.
#include <torch/extension.h>

#include <cmath>
#include <cstdint>

namespace {

void round_(const at::Tensor& tensor) {
  auto* p = tensor.data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) p[i] = std::round(p[i] * 16) / 16;
}

double norm(const at::Tensor& tensor) {
  double sum = 0;
  const auto* p = tensor.const_data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) sum += std::abs(p[i]);
  return sum;
}

void average_(const at::Tensor& average, const at::Tensor& tensor) {
  auto* p = average.data_ptr<float>();
  const auto* q = tensor.const_data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) p[i] += 0.125F * (q[i] - p[i]);
}

at::Tensor cell(const at::Tensor& x, const at::Tensor& weight) { return at::tanh(at::mm(x, weight)); }

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("round_", &round_);
  m.def("norm", &norm);
  m.def("average_", &average_);
  m.def("cell", &cell);
}
