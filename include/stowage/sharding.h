// Automatic sharding: how each tensor of a training step is split over a mesh of devices, so that the least memory is
// redundant on each device and, among those splits, the step is the fastest.
//
//   TensorProgram (what the step computes) ─┐
//   Mesh (axes of devices, links)           ├─▶ plan_sharding() ─▶ ShardingPlan: placements of every op's inputs and outputs, of
//   ShardingOptions (eps, memory limit)    ─┘                      every tensor, a ledger of bytes, modelled time, bound and gap
//
// A placement says, for each axis of the mesh, what the devices along it hold of a tensor: a slice (shard), all of it
// (replicate), or a summand of it (partial). Slices are cut as torch.chunk does: the first ones have ceil(size / n)
// rows, the last may be shorter or empty. Several axes may cut one dimension: axis 0 first, then axis 1 within each
// slice.
//
// A device's bytes of a tensor above its even share are redundant: local bytes - bytes / devices. Files:
// docs/formats.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "stowage/ids.h"
#include "stowage/outcome.h"

namespace stowage {

using TensorId = Id<struct TensorTag>;      // position in TensorProgram::tensors
using TensorOpId = Id<struct TensorOpTag>;  // position in TensorProgram::ops, which is program order

struct MeshAxis {
  std::string name;
  std::int32_t size = 1;
  double latency_ns = 6000;  // of one hop
  double gbps = 100;         // 10^9 bytes a second, of one device to its neighbour on this axis
};

struct Mesh {
  std::vector<MeshAxis> axes;
  double tflops = 300;        // of one device, as reached
  double memory_gbps = 1500;  // of one device, as reached
  double kernel_ns = 2000;    // no kernel is shorter
  [[nodiscard]] std::int64_t devices() const;
};

// What the devices along one axis hold.
struct AxisPlacement {
  enum class Kind : std::uint8_t { kShard, kReplicate, kPartialSum, kPartialAvg, kPartialMax };
  Kind kind = Kind::kReplicate;
  std::int8_t dim = -1;  // of a shard
  auto operator<=>(const AxisPlacement&) const = default;
};
using MeshPlacement = std::vector<AxisPlacement>;  // one per axis

enum class TensorKind : std::uint8_t {
  kParameter,
  kGradient,
  kOptimizerState,
  kModuleBuffer,
  kInput,
  kConstant,
  kActivation,
  kOutput
};
enum class Phase : std::uint8_t { kForward, kBackward, kOptimizer };

struct ProgramTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t item_bytes = 4;
  TensorKind kind = TensorKind::kActivation;
  TensorId of;        // the parameter, of a gradient or an optimizer state
  TensorId alias_of;  // the tensor whose storage this one shares (a view)
};

using Attribute = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>>;

struct TensorArgument {
  std::string name;  // as in the op's schema: "self", "mat2"
  std::vector<TensorId> tensors;
  bool is_list = false;
};

struct ProgramOp {
  std::string target;  // "aten.mm.default"
  Phase phase = Phase::kForward;
  std::vector<TensorArgument> args;  // the tensor arguments that are given
  std::vector<TensorId> outputs;     // new tensors; an id that is not valid stands for an output that is not there
  std::vector<TensorId> writes;      // arguments that are changed in place
  std::map<std::string, Attribute, std::less<>> attributes;  // the other arguments, by name
  std::int64_t flops = 0;
};

struct TensorProgram {
  std::string name;
  std::vector<ProgramTensor> tensors;
  std::vector<ProgramOp> ops;
};

enum class ShardingGoal : std::uint8_t {
  kLeastRedundancy,  // least bytes, then least time within (1 + eps) of them
  kLeastTime,        // least time under the memory limit: what other planners do
};

struct ShardingOptions {
  ShardingGoal goal = ShardingGoal::kLeastRedundancy;
  double eps = 0;                                  // of the least state and saved bytes per device
  std::optional<std::int64_t> memory_limit_bytes;  // of the peak per device
  // Of what is alive beside an op, and neither state nor its own, this share counts towards the limit: what
  // recomputation and copies to the host take is to be met by others. 1: all of it
  double kept_share = 1;
  std::map<std::int32_t, MeshPlacement> fixed;  // by tensor: its placement is given
  // Collectives run beside kernels where nothing waits for them (src/sharding/timeline.h); else one after another
  bool overlap = false;
  // Ops that look alike this far round share a choice (1000 at most); 0: each chooses alone
  std::int32_t cluster_rounds = 6;
  double relative_gap = 1e-4;                // of the modelled time
  std::int64_t iteration_limit = 2'000'000;  // simplex iterations of one integer program
  double time_limit_seconds = 0;             // outer stop; 0: none
  std::uint64_t seed = 0;
  std::string solver_library;
};

// How one op runs. Inputs are brought to `inputs`, the kernel runs on the local shards and leaves `computed`, which is
// brought to `outputs`. Lists follow the op's tensors: `inputs` all tensors of all args in order, `outputs` one per
// output (empty: not there).
struct OpSharding {
  std::vector<MeshPlacement> inputs;
  std::vector<MeshPlacement> computed;
  std::vector<MeshPlacement> outputs;
  bool replicated = false;  // no rule, or none that fits: runs on whole tensors
  std::string why;          // of that
  std::string recipe;       // how the kernel is called, when not as it was: docs/formats.md
  double compute_ns = 0;
  double communication_ns = 0;
  std::int64_t transient_bytes = 0;  // copies of inputs and outputs made for this op
  // With overlap:
  double waited_ns = 0;          // until its kernel could begin after the one before
  std::int64_t ahead_bytes = 0;  // copies that are alive beside it: made ahead for later ops, or not yet brought away
};

struct TensorSharding {
  MeshPlacement placement;
  std::int64_t local_bytes = 0;      // of the fullest device
  std::int64_t redundant_bytes = 0;  // local_bytes - ceil(bytes / devices)
  bool saved = false;                // made in forward, alive in backward
};

struct ShardingBytes {  // per device, of the fullest one
  std::int64_t parameters = 0, gradients = 0, optimizer_state = 0, buffers = 0, inputs = 0;
  std::int64_t saved = 0;      // activations alive between forward and backward, each storage once
  std::int64_t redundant = 0;  // of all the above
  std::int64_t ideal = 0;      // all the above, divided evenly
  std::int64_t peak = 0;       // the largest sum alive at one op, state and copies included
  std::int32_t peak_op = -1;
  // The same where what is neither state nor the op's own counts by ShardingOptions::kept_share
  std::int64_t limited_peak = 0;
  std::int32_t limited_peak_op = -1;
};

struct StageResult {
  Outcome outcome = Outcome::kUnknown;
  double value = 0, bound = 0, seconds = 0;
  [[nodiscard]] double gap() const;
};

struct ShardingPlan {
  std::vector<OpSharding> ops;
  std::vector<TensorSharding> tensors;
  ShardingBytes bytes;
  double compute_ns = 0, communication_ns = 0;
  bool overlap = false;
  double overlapped_ns = 0;       // with overlap: of the whole step
  std::vector<double> links_ns;   // with overlap: how long each axis carries something
  std::int64_t bucket_bytes = 0;  // with overlap: of what is brought ahead together, and of what is brought away
  StageResult redundancy;         // in bytes: stage 1
  StageResult time;               // in ns: stage 2, of the clustered program
  std::int64_t variables = 0, choices = 0;  // size of the integer program; ops and tensors that choose
  [[nodiscard]] double step_ns() const { return overlap ? overlapped_ns : compute_ns + communication_ns; }
};

ShardingPlan plan_sharding(const TensorProgram& program, const Mesh& mesh, const ShardingOptions& options);

// Bytes of one device's part; `coordinate` is the device's place on each axis.
std::int64_t local_bytes(const ProgramTensor& tensor, const MeshPlacement& placement, const Mesh& mesh,
                         const std::vector<std::int32_t>& coordinate);

}  // namespace stowage
