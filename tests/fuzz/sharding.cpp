// The sharding planner on small programs: ops with rules, shaped as their names promise or not, on meshes of one or two
// axes. A plan says for every op and tensor how it is split, its bytes add up, and its bounds hold.
#include <limits>

#include "fuzz/byte_source.h"
#include "fuzz/target.h"
#include "solver/milp.h"
#include "stowage/io.h"
#include "stowage/sharding.h"
#include "support/operator_names.h"

namespace stowage::fuzz {
namespace {

constexpr std::array<std::string_view, 14> kArguments = {"self",  "mat2",   "mat1",    "input", "weight",
                                                         "bias",  "target", "indices", "index", "grad_output",
                                                         "query", "key",    "value",   "grads"};
constexpr std::array<std::string_view, 12> kAttributes = {
    "dim",    "dims",       "dim0", "keepdim", "reduction", "normalized_shape",
    "groups", "transposed", "ord",  "train",   "size",      "padding_idx"};
constexpr std::array<std::int64_t, 8> kSizes = {4, 2, 8, 1, 6, 0, 3, 1024};
constexpr std::array<std::int64_t, 7> kValues = {
    0, 1, -1, 2, -2, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};

class Decoder {
 public:
  explicit Decoder(ByteSource& bytes) : bytes_(bytes) {}

  TensorProgram run() {
    for (auto i = bytes_.draw(1, 3); i > 0; --i) {
      new_shape();
      add_tensor(static_cast<TensorKind>(bytes_.draw(0, 7)));
    }
    for (auto i = bytes_.draw(1, 4); i > 0; --i) add_op();
    return std::move(program_);
  }

 private:
  TensorId any() { return TensorId(static_cast<std::int32_t>(bytes_.draw(0, std::ssize(program_.tensors) - 1))); }

  void new_shape() {
    shape_.clear();
    for (auto d = bytes_.draw(0, 4); d > 0; --d) shape_.push_back(bytes_.pick(kSizes));
  }

  TensorId add_tensor(TensorKind kind) {
    ProgramTensor& tensor = program_.tensors.emplace_back();
    tensor.kind = kind;
    tensor.shape = shape_;
    if (kind == TensorKind::kGradient || kind == TensorKind::kOptimizerState) tensor.of = TensorId(0);
    return TensorId(program_.tensors.size() - 1);
  }

  // Of an argument, of two multiplied, or another.
  TensorId add_output(const ProgramOp& op) {
    if (!op.args.empty() && !op.args[0].tensors.empty()) {
      shape_ = program_.tensors[op.args[0].tensors[0].index()].shape;
      const auto& last = op.args.back().tensors;
      if (bytes_.chance(30) && !shape_.empty() && !last.empty() && !program_.tensors[last[0].index()].shape.empty()) {
        shape_.back() = program_.tensors[last[0].index()].shape.back();
      }
    }
    if (bytes_.chance(20))
      std::swap(shape_.empty() ? unused_ : shape_.front(), shape_.empty() ? unused_ : shape_.back());
    if (bytes_.chance(20)) new_shape();
    return add_tensor(TensorKind::kActivation);
  }

  void add_op() {
    ProgramOp op;
    op.target = bytes_.pick(testing::kShardingTargets);
    op.phase = static_cast<Phase>(bytes_.draw(0, 2));
    const bool list = bytes_.chance(20);
    for (auto a = bytes_.draw(0, 4); a > 0; --a) {
      TensorArgument& argument = op.args.emplace_back(TensorArgument{std::string(bytes_.pick(kArguments)), {}, list});
      for (auto n = list ? bytes_.draw(0, 3) : 1; n > 0; --n) argument.tensors.push_back(any());
    }
    const bool with_first = !op.args.empty() && !op.args[0].tensors.empty();
    for (auto n = bytes_.draw(0, 3); n > 0; --n) {
      if (bytes_.chance(15)) {
        op.outputs.emplace_back();
        continue;
      }
      const TensorId base = any();
      op.outputs.push_back(add_output(op));
      if (bytes_.chance(30)) program_.tensors.back().alias_of = with_first ? op.args[0].tensors[0] : base;
    }
    if (with_first && bytes_.chance(25)) op.writes.push_back(op.args[0].tensors[0]);
    for (auto n = bytes_.draw(0, 3); n > 0; --n) {
      const std::string name(bytes_.pick(kAttributes));
      if (bytes_.chance(50))
        op.attributes[name] = bytes_.pick(kValues);
      else
        op.attributes[name] = std::vector<std::int64_t>{bytes_.pick(kValues), bytes_.pick(kValues)};
    }
    if (bytes_.chance(20))
      op.flops = bytes_.chance(50) ? std::numeric_limits<std::int64_t>::max() : bytes_.draw(0, 1 << 30);
    program_.ops.push_back(std::move(op));
  }

  ByteSource& bytes_;
  TensorProgram program_;
  std::vector<std::int64_t> shape_;
  std::int64_t unused_ = 0;
};

Mesh decode_mesh(ByteSource& bytes) {
  constexpr std::array<std::int32_t, 6> kDevices = {2, 4, 3, 1, 8, 1000};
  constexpr std::array<double, 6> kRates = {100, 1, 1e-3, 1e9, 1e-6, 1e300};
  Mesh mesh;
  for (auto i = bytes.draw(1, 2); i > 0; --i) {
    mesh.axes.push_back({.name = "",
                         .size = bytes.pick(kDevices),
                         .latency_ns = static_cast<double>(bytes.draw(0, 1000)),
                         .gbps = bytes.pick(kRates)});
  }
  if (bytes.chance(20)) mesh.tflops = bytes.pick(kRates);
  if (bytes.chance(20)) mesh.memory_gbps = bytes.pick(kRates);
  return mesh;
}

ShardingOptions decode_sharding_options(ByteSource& bytes, const Mesh& mesh) {
  constexpr std::array<AxisPlacement, 4> kPlacements = {AxisPlacement{},
                                                        {AxisPlacement::Kind::kShard, 0},
                                                        {AxisPlacement::Kind::kShard, 1},
                                                        {AxisPlacement::Kind::kPartialSum, -1}};
  ShardingOptions options;
  options.goal = bytes.chance(50) ? ShardingGoal::kLeastTime : ShardingGoal::kLeastRedundancy;
  options.cluster_rounds = bytes.chance(30) ? 0 : static_cast<std::int32_t>(bytes.draw(1, 8));
  options.eps = bytes.chance(20) ? 0.5 : 0;
  options.iteration_limit = bytes.chance(10) ? bytes.draw(1, 50) : 500;
  if (bytes.chance(30)) options.memory_limit_bytes = bytes.draw(0, 2000);
  if (bytes.chance(30)) options.kept_share = static_cast<double>(bytes.draw(0, 4)) / 4;
  if (bytes.chance(20)) {
    MeshPlacement& fixed = options.fixed[static_cast<std::int32_t>(bytes.draw(0, 5))];
    for (std::size_t i = 0; i < mesh.axes.size(); ++i) fixed.push_back(bytes.pick(kPlacements));
  }
  options.overlap = bytes.chance(20);
  return options;
}

void judge(const TensorProgram& program, const ShardingOptions& options, const ShardingPlan& plan) {
  if (plan.ops.empty()) {
    const bool told = plan.time.outcome == Outcome::kInfeasible || plan.time.outcome == Outcome::kUnknown;
    return require(told, "there is a plan, or a reason");
  }
  require(plan.ops.size() == program.ops.size() && plan.tensors.size() == program.tensors.size(),
          "every op and tensor has its part");
  require(!options.memory_limit_bytes || plan.bytes.limited_peak <= *options.memory_limit_bytes, "the limit is kept");
  require(plan.bytes.peak >= 0 && plan.bytes.redundant >= 0 && plan.bytes.saved >= 0, "bytes are not negative");
  require(plan.redundancy.bound <= plan.redundancy.value, "the bound on bytes holds");
  require(plan.overlap == options.overlap, "the time is that of the model that was asked for");
  require(plan.step_ns() <= (plan.compute_ns + plan.communication_ns) * (1 + 1e-9),
          "overlap takes no longer than the sum");
  require(!to_json(plan).empty(), "a plan is written");
}

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::ByteSource bytes(data, size);
  const Mesh mesh = fuzz::decode_mesh(bytes);
  const ShardingOptions options = fuzz::decode_sharding_options(bytes, mesh);
  const TensorProgram program = fuzz::Decoder(bytes).run();
  fuzz::accepts([&] {
    sharding_rules_json(program);
    fuzz::judge(program, options, plan_sharding(program, mesh, options));
  });
  return 0;
}
