#include "runtime/torch/spent_graph.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <utility>

#include "runtime/torch/torch_versions.h"

namespace stowage::runtime {
namespace {

class SpentGraph : public torch::autograd::Node {
 public:
  explicit SpentGraph(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    TORCH_CHECK(false, torch::autograd::ERR_BACKWARD_TWICE);
  }

  std::string name_;
};

}  // namespace

void end_with_spent_graph(const at::Tensor& tensor, const std::string& name) {
  torch::autograd::set_history(tensor, torch_versions::make_node<SpentGraph>(name));
}

}  // namespace stowage::runtime
