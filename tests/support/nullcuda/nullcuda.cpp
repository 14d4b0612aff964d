// A driver without a GPU: what the CUDA build of PyTorch asks of CUDA's runtime and driver, answered on the host.
//
//   real here     PyTorch's dispatch, caching allocator, sizes of requests, streams and events as it orders them, offsets of
//                 generators, calls of capture
//   not there     kernels: launches are counted, and nothing runs. So no value is worth anything
//
// Device memory is address space alone, which nobody may touch: the host ends at the first access, and 80 GiB cost
// nothing. A copy from the device gives zeros, one to it is dropped; so a step that is run twice gives the same bits.
//
// Streams capture as on a GPU: who waits for an event of a stream that captures, captures too; to ask whether such a
// stream is done, or to wait for it, is an error and ends the capture; so is capture that is not joined again.
//
// It is loaded before all others (LD_PRELOAD), under the name libcuda.so.1; the calls that need no answer are written by
// nullcuda.py.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#undef cudaGetDeviceProperties

#define ANSWER extern "C" __attribute__((visibility("default")))

namespace {

using Clock = std::chrono::steady_clock;

std::mutex mutex;  // of all below

// ---- Counters, for tests

enum Counter { kLaunches, kProducts, kCopies, kWaits, kNodes, kGraphLaunches, kDeviceBytes, kPinnedBytes, kCounters };
std::array<std::atomic<long>, kCounters> counters{};

// ---- Memory

using Blocks = std::map<std::uintptr_t, std::size_t>;  // address to bytes
Blocks& device_blocks() {
  static auto* const blocks = new Blocks();
  return *blocks;
}
Blocks& pinned_blocks() {
  static auto* const blocks = new Blocks();
  return *blocks;
}

std::size_t device_bytes() {
  const char* const said = std::getenv("NULLCUDA_BYTES");
  return said != nullptr ? std::strtoull(said, nullptr, 10) : std::size_t{80} << 30;
}

cudaError_t take(Blocks& blocks, Counter counter, void** made, std::size_t bytes, int protection) {
  const std::lock_guard lock(mutex);
  if (bytes == 0) return *made = nullptr, cudaSuccess;
  void* const at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
  blocks.emplace(reinterpret_cast<std::uintptr_t>(at), bytes);
  counters[counter] += static_cast<long>(bytes);
  *made = at;
  return cudaSuccess;
}

cudaError_t give_back(Blocks& blocks, Counter counter, void* at) {
  const std::lock_guard lock(mutex);
  const auto it = blocks.find(reinterpret_cast<std::uintptr_t>(at));
  if (it == blocks.end()) return at == nullptr ? cudaSuccess : cudaErrorInvalidValue;
  munmap(at, it->second);
  counters[counter] -= static_cast<long>(it->second);
  blocks.erase(it);
  return cudaSuccess;
}

bool lies_in(const Blocks& blocks, const void* at) {
  const std::lock_guard lock(mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const auto it = blocks.upper_bound(address);
  return it != blocks.begin() && address < std::prev(it)->first + std::prev(it)->second;
}

// ---- Streams, events, capture

struct Event {
  Clock::time_point at;
  long capture = 0;  // in which it was recorded
};

struct Capture {
  cudaStream_t origin = nullptr;
  std::set<cudaStream_t> streams;  // that have joined, and not come back
  bool broken = false;
};

std::map<long, Capture>& captures() {  // by number, those that go on
  static auto* const captures = new std::map<long, Capture>();
  return *captures;
}

// The number of the capture that a stream takes part in, or 0.
long capture_of(cudaStream_t stream) {
  for (const auto& [number, capture] : captures())
    if (capture.streams.contains(stream)) return number;
  return 0;
}

struct Node {
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  cudaMemcpyKind kind = cudaMemcpyDeviceToDevice;  // of a copy
};
// Of the latest capture; a node's handle is its place here, from 1 on.
std::vector<Node>& nodes() {
  static auto* const nodes = new std::vector<Node>();
  return *nodes;
}

cudaError_t node(cudaStream_t stream, Node made = {}) {
  const std::lock_guard lock(mutex);
  if (capture_of(stream) == 0) return cudaSuccess;
  ++counters[kNodes];
  nodes().push_back(made);
  return cudaSuccess;
}

// What asks whether a stream is done: not while it captures.
cudaError_t asks(long capture) {
  if (capture == 0) return cudaSuccess;
  captures()[capture].broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t launch(cudaStream_t stream) {
  ++counters[kLaunches];
  return node(stream);
}

// In whole pages of pinned memory by giving them back, so that what waits on the host takes none either.
void zero(void* to, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 4096;
  const auto at = reinterpret_cast<std::uintptr_t>(to);
  const std::uintptr_t from = (at + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (at + bytes) / kPage * kPage;
  if (!lies_in(pinned_blocks(), to) || from >= end) return void(std::memset(to, 0, bytes));
  std::memset(to, 0, from - at);
  madvise(reinterpret_cast<void*>(from), end - from, MADV_DONTNEED);
  std::memset(reinterpret_cast<void*>(end), 0, at + bytes - end);
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  ++counters[kCopies];
  const bool to_device = lies_in(device_blocks(), to), from_device = lies_in(device_blocks(), from);
  if (!to_device && from_device) zero(to, bytes);
  if (!to_device && !from_device) std::memmove(to, from, bytes);
  const cudaMemcpyKind kind = to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                        : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
  return node(stream, {cudaGraphNodeTypeMemcpy, kind});
}

std::atomic<long> last_handle{0x1000};
template <class Handle>
void make(Handle* made) {
  *made = reinterpret_cast<Handle>(last_handle += 8);
}

}  // namespace

ANSWER long nullcuda_count(int which) { return counters[static_cast<std::size_t>(which)]; }
ANSWER void nullcuda_product() {
  const std::lock_guard lock(mutex);
  ++counters[kProducts];
  if (!captures().empty()) ++counters[kNodes];
}
ANSWER void nullcuda_make(void** made) { make(made); }

// ---- The device

ANSWER cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
ANSWER cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
ANSWER cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
ANSWER cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
ANSWER cudaError_t cudaDeviceGetPCIBusId(char* text, int room, int) {
  std::snprintf(text, static_cast<std::size_t>(room), "0000:00:00.0");
  return cudaSuccess;
}
ANSWER cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -5, cudaSuccess;
}

// The figures of an H100.
ANSWER cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "no GPU (driver stub)");
  p->major = 9;
  p->multiProcessorCount = 132;
  p->totalGlobalMem = device_bytes();
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = 227 << 10;
  p->sharedMemPerMultiprocessor = 228 << 10;
  p->regsPerBlock = p->regsPerMultiprocessor = 64 << 10;
  p->l2CacheSize = 50 << 20;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->memoryBusWidth = 5120;
  p->concurrentKernels = p->unifiedAddressing = 1;
  p->asyncEngineCount = 3;
  p->textureAlignment = 512;
  return cudaSuccess;
}

ANSWER cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  static const std::map<cudaDeviceAttr, int> known = {
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMultiProcessorCount, 132},
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 << 10},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrWarpSize, 32},
  };
  const auto it = known.find(which);
  *value = it == known.end() ? 0 : it->second;
  return cudaSuccess;
}

// ---- Memory

ANSWER cudaError_t cudaMalloc(void** made, std::size_t bytes) {
  if (counters[kDeviceBytes] + static_cast<long>(bytes) > static_cast<long>(device_bytes()))
    return cudaErrorMemoryAllocation;
  return take(device_blocks(), kDeviceBytes, made, bytes, PROT_NONE);
}
ANSWER cudaError_t cudaFree(void* at) { return give_back(device_blocks(), kDeviceBytes, at); }
ANSWER cudaError_t cudaHostAlloc(void** made, std::size_t bytes, unsigned) {
  return take(pinned_blocks(), kPinnedBytes, made, bytes, PROT_READ | PROT_WRITE);
}
ANSWER cudaError_t cudaFreeHost(void* at) { return give_back(pinned_blocks(), kPinnedBytes, at); }
ANSWER cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = device_bytes();
  *free = *total - static_cast<std::size_t>(counters[kDeviceBytes].load());
  return cudaSuccess;
}
ANSWER cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* known, const void* at) {
  *known = {};
  known->type = lies_in(device_blocks(), at)   ? cudaMemoryTypeDevice
                : lies_in(pinned_blocks(), at) ? cudaMemoryTypeHost
                                               : cudaMemoryTypeUnregistered;
  known->devicePointer = known->hostPointer = const_cast<void*>(at);
  return cudaSuccess;
}
ANSWER cudaError_t cudaGetSymbolAddress(void** at, const void*) {
  static std::array<char, 1 << 16> room{};
  return *at = room.data(), cudaSuccess;
}

ANSWER cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr);
}
ANSWER cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t s) {
  return copy(to, from, bytes, s);
}
ANSWER cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t s) {
  return copy(to, from, bytes, s);
}
ANSWER cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                     std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t s) {
  for (std::size_t row = 0; row < height; ++row)
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, s);
  return cudaSuccess;
}
ANSWER cudaError_t cudaMemset(void*, int, std::size_t) { return cudaSuccess; }
ANSWER cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t stream) {
  return node(stream, {cudaGraphNodeTypeMemset});
}

// ---- Streams and events

ANSWER cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int) { return make(made), cudaSuccess; }
ANSWER cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned) { return make(made), cudaSuccess; }
ANSWER cudaError_t cudaStreamCreate(cudaStream_t* made) { return make(made), cudaSuccess; }
ANSWER cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { return *priority = 0, cudaSuccess; }
ANSWER cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  return asks(capture_of(stream));
}
ANSWER cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaStreamQuery(stream); }
ANSWER cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard lock(mutex);
  return asks(captures().empty() ? 0 : captures().begin()->first);
}

ANSWER cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  *made = reinterpret_cast<cudaEvent_t>(new Event());
  return cudaSuccess;
}
ANSWER cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, 0); }
ANSWER cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
ANSWER cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  *reinterpret_cast<Event*>(event) = {Clock::now(), capture_of(stream)};
  return cudaSuccess;
}
ANSWER cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
ANSWER cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  const long capture = reinterpret_cast<Event*>(event)->capture;
  return asks(captures().contains(capture) ? capture : 0);
}
ANSWER cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaEventQuery(event); }
ANSWER cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const auto passed = reinterpret_cast<Event*>(to)->at - reinterpret_cast<Event*>(from)->at;
  *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
  return cudaSuccess;
}
ANSWER cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex);
  ++counters[kWaits];
  const auto it = captures().find(reinterpret_cast<Event*>(event)->capture);
  const long own = capture_of(stream);
  if (it == captures().end()) {
    if (own != 0 && reinterpret_cast<Event*>(event)->at != Clock::time_point{} &&
        reinterpret_cast<Event*>(event)->capture == 0)
      return captures()[own].broken = true, cudaErrorStreamCaptureIsolation;  // of work that is not captured
    return cudaSuccess;
  }
  if (own != 0 && own != it->first) return cudaErrorStreamCaptureMerge;
  it->second.streams.insert(stream);
  return cudaSuccess;
}

// ---- Graphs

ANSWER cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(mutex);
  static long number = 0;
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  if (capture_of(stream) != 0) return cudaErrorIllegalState;
  captures()[++number] = {stream, {stream}, false};
  counters[kNodes] = 0;
  nodes().clear();
  return cudaSuccess;
}
ANSWER cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* made) {
  const std::lock_guard lock(mutex);
  const long number = capture_of(stream);
  if (number == 0) return cudaErrorIllegalState;
  const bool broken = captures()[number].broken;
  captures().erase(number);
  if (broken) return *made = nullptr, cudaErrorStreamCaptureInvalidated;
  return make(made), cudaSuccess;
}
ANSWER cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(mutex);
  *status = capture_of(stream) != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
ANSWER cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* number, cudaGraph_t* graph,
                                            const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                            std::size_t* count) {
  if (const cudaError_t error = cudaStreamIsCapturing(stream, status); error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  if (number != nullptr) *number = static_cast<unsigned long long>(capture_of(stream));
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}
ANSWER cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t* to, std::size_t* count) {
  const std::lock_guard lock(mutex);
  *count = nodes().size();
  for (std::size_t i = 0; to != nullptr && i < nodes().size(); ++i) to[i] = reinterpret_cast<cudaGraphNode_t>(i + 1);
  return cudaSuccess;
}
ANSWER cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  const std::lock_guard lock(mutex);
  return *type = nodes().at(reinterpret_cast<std::size_t>(node) - 1).type, cudaSuccess;
}
ANSWER cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* copy) {
  const std::lock_guard lock(mutex);
  return copy->kind = nodes().at(reinterpret_cast<std::size_t>(node) - 1).kind, cudaSuccess;
}
ANSWER cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t, unsigned long long) {
  return make(made), cudaSuccess;
}
ANSWER cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return ++counters[kGraphLaunches], cudaSuccess; }

// ---- Kernels

ANSWER cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t s) { return launch(s); }
ANSWER cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t s) {
  return launch(s);
}
ANSWER cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t s) {
  return launch(s);
}
ANSWER cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  return launch(config->stream);
}
ANSWER cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function)), cudaSuccess;
}

namespace {
struct Configuration {
  dim3 grid, block;
  std::size_t shared = 0;
  void* stream = nullptr;
};
thread_local Configuration pushed;
}  // namespace

ANSWER unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, void* stream) {
  return pushed = {grid, block, shared, stream}, 0;
}
ANSWER cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared;
  *static_cast<void**>(stream) = pushed.stream;
  return cudaSuccess;
}
ANSWER void** __cudaRegisterFatBinary(void*) {
  static std::array<void*, 4> handle{};
  return handle.data();
}
ANSWER cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* known, const void*) {
  *known = {};
  known->maxThreadsPerBlock = 1024;
  known->numRegs = 32;
  known->binaryVersion = known->ptxVersion = 90;
  known->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}
ANSWER cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  return *blocks = 2, cudaSuccess;
}
ANSWER cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, std::size_t,
                                                                          unsigned) {
  return *blocks = 2, cudaSuccess;
}

// ---- Errors

ANSWER const char* cudaGetErrorName(cudaError_t) { return "nullcuda"; }
ANSWER const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
    default: return "an error of the driver stub";
  }
}

// ---- The driver, and libraries

ANSWER cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (result != nullptr) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorSymbolNotFound;
}
ANSWER int cuGetErrorString(int, const char** text) { return *text = "an error of the driver stub", 0; }
ANSWER int cuCtxGetCurrent(void** context) { return make(context), 0; }
ANSWER int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) { return *flags = 0, *active = 1, 0; }
ANSWER int cuPointerGetAttribute(void* value, int, unsigned long long) { return *static_cast<int*>(value) = 0, 0; }
ANSWER int cublasGetMathMode(void*, int* mode) { return *mode = 0, 0; }
ANSWER int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0, 0; }
ANSWER std::size_t cudnnGetVersion() { return 92000; }

// One result: no workspace, and all else zero.
ANSWER int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* result,
                                          int* found) {
  std::memset(result, 0, 64 + 8 + 4);
  return *found = 1, 0;
}
