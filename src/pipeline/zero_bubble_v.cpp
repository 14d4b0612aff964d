// Zero bubble in a V (ZB-V): two stages a rank, the second half of the chain coming back over the ranks, so that the
// rank of the first stage also has the last one and a backward can begin there at once.
//
//   2 ranks    rank 0, stages 0 and 3:   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 ...
//              rank 1, stages 1 and 2:   1F0 2F0 1F1 2F1 ...
//
// It has no bubble where forward, backward of the input and backward of the weights take equal times. The order is made
// for at least 2 p - 1 micro-batches; those beyond what there are fall out. P. Qi et al., "Zero bubble pipeline
// parallelism" (arXiv 2401.10241), section 6. O(micro-batches).
#include <algorithm>
#include <array>

#include "pipeline/schedule.h"

namespace stowage::pipeline {
namespace {

class Writer {
 public:
  Writer(std::int32_t ranks, std::int32_t rank) : stage_{rank, 2 * ranks - 1 - rank} {}

  void forward(int half) { put(half, PipelineAction::Kind::kForward, forwards[at(half)]++); }
  void input(int half) { put(half, PipelineAction::Kind::kInput, inputs[at(half)]++); }
  void weight(int half) { put(half, PipelineAction::Kind::kWeight, weights[at(half)]++); }
  void backward(int half) { input(half), weight(half); }

  std::array<std::int32_t, 2> forwards{}, inputs{}, weights{};
  std::vector<PipelineAction> list;

 private:
  static std::size_t at(int half) { return static_cast<std::size_t>(half); }
  void put(int half, PipelineAction::Kind kind, std::int32_t micro_batch) {
    list.push_back({stage_[at(half)], kind, micro_batch});
  }
  std::array<std::int32_t, 2> stage_;
};

}  // namespace

std::vector<PipelineAction> zero_bubble_v(std::int32_t ranks, std::int32_t rank, std::int32_t micro_batches) {
  const std::int32_t count = std::max(2 * ranks - 1, micro_batches);
  Writer w(ranks, rank);
  for (std::int32_t k = 0; k < 2 * (ranks - rank) - 1; ++k) w.forward(0);
  for (std::int32_t k = 0; k < rank; ++k) w.forward(1), w.forward(0);
  for (std::int32_t k = 0; k < ranks - rank; ++k) w.forward(1), w.backward(1);
  while (w.forwards[1] < w.forwards[0] || w.forwards[0] < count) {
    if (w.forwards[0] < count) w.forward(0);
    w.backward(0);
    w.forward(1);
    w.backward(1);
  }
  for (std::int32_t k = 0; k < rank; ++k) w.input(0), w.input(1);
  for (std::int32_t k = 0; k < ranks - rank; ++k) w.input(0), w.weight(0);
  while (w.weights[1] < w.inputs[1]) w.weight(1);
  while (w.weights[0] < w.inputs[0]) w.weight(0);
  std::erase_if(w.list, [&](const PipelineAction& a) { return a.micro_batch >= micro_batches; });
  return w.list;
}

}  // namespace stowage::pipeline
