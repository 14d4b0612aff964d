// CUDA's graphs, by its runtime alone: PyTorch's generic classes have none before 2.13. PyTorch need not know that a stream
// captures. Kernels that draw are not noted, and memory comes from a plan.
//
// Empty unless STOWAGE_CUDA is defined (cuda_front.cpp).
#ifdef STOWAGE_CUDA

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "runtime/memory/accelerator_graphs.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

void require(cudaError_t said) {
  if (said == cudaSuccess) return;
  cudaGetLastError();  // else whoever asks next hears of it
  throw Error(std::string("CUDA: ") + cudaGetErrorString(said));
}

// A copy from the host's memory would read later what lies there then; a function of the host, too.
void require_device_alone(cudaGraph_t noted) {
  std::size_t count = 0;
  require(cudaGraphGetNodes(noted, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  require(cudaGraphGetNodes(noted, nodes.data(), &count));
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeKernel;
    require(cudaGraphNodeGetType(node, &type));
    if (type == cudaGraphNodeTypeHost) throw Error("it calls a function of the host");
    if (type != cudaGraphNodeTypeMemcpy) continue;
    cudaMemcpy3DParms copy{};
    require(cudaGraphMemcpyNodeGetParams(node, &copy));
    if (copy.kind != cudaMemcpyDeviceToDevice) throw Error("it copies to or from the host");
  }
}

class CudaCapture final : public Capture {
 public:
  ~CudaCapture() override {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  // Of this thread alone: others may ask for memory meanwhile.
  void begin() override {
    stream_ = c10::cuda::getCurrentCUDAStream().stream();
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  }
  void end() override {
    cudaGraph_t noted = nullptr;
    require(cudaStreamEndCapture(stream_, &noted));
    struct Destroy {
      cudaGraph_t graph;
      ~Destroy() { cudaGraphDestroy(graph); }
    } const at_end{noted};
    require_device_alone(noted);
    require(cudaGraphInstantiateWithFlags(&graph_, noted, 0));
  }
  void replay() override { require(cudaGraphLaunch(graph_, c10::cuda::getCurrentCUDAStream().stream())); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

std::unique_ptr<Capture> cuda_capture() { return std::make_unique<CudaCapture>(); }

// None of PyTorch's pool, which hands its streams out to everybody. It lives as long as the process.
c10::Stream cuda_stream(c10::Device where) {
  cudaStream_t made = nullptr;
  require(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return c10::cuda::getStreamFromExternal(made, where.index()).unwrap();
}

const bool kCudaGraphsKnown = know_graphs(c10::DeviceType::CUDA, {&cuda_capture, &cuda_stream});

}  // namespace
}  // namespace stowage::runtime

#endif
