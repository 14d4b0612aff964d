#include "fuzz/decode_graph.h"

#include <algorithm>

#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage::fuzz {
namespace {

constexpr std::array<std::int64_t, 6> kAligns = {1, 4, 64, 3, 512, std::int64_t{1} << 40};
constexpr std::array<std::int64_t, 6> kUnits = {1, 1, 100, 4096, std::int64_t{1} << 30, std::int64_t{1} << 44};
// What the rules of explain look for, and others.
constexpr std::array<std::string_view, 14> kTargets = {"aten::mm",
                                                       "aten::add_",
                                                       "aten::zero_",
                                                       "aten::_log_softmax",
                                                       "aten::nll_loss_forward",
                                                       "aten::copy",
                                                       "aten::linalg_vector_norm",
                                                       "aten::sqrt",
                                                       "aten::clone",
                                                       "aten::stack",
                                                       "aten::mul_",
                                                       "aten::add",
                                                       "aten::cat",
                                                       "test::op"};
constexpr std::array<std::string_view, 6> kNames = {
    "a", "", "</script><b>", "it's \"x\"\n\\", "\xc3\xa9\xe2\x80\xa8", "{{DATA}}"};
constexpr std::array<std::string_view, 4> kMetas = {"", "{\"line\":\"train.py:7\"}", "{\"line\":\"a\\\"\\\\/b.py:1\"}",
                                                    "{\"line\":3}"};
constexpr std::array<double, 8> kLinks = {0, 12, 0.05, 0.001, 1000, 1e-9, 1e6, 1e300};
constexpr std::array<std::int64_t, 5> kNodes = {2'000, 200, 10, 1, 20'000};

class Decoder {
 public:
  Decoder(ByteSource& bytes, std::int64_t most_ops) : bytes_(bytes), most_ops_(most_ops) {}

  std::optional<Graph> run() {
    graph_.align = bytes_.pick(kAligns);
    unit_ = bytes_.pick(kUnits);
    cost_unit_ = bytes_.pick(kUnits);
    for (auto i = bytes_.draw(0, 3); i > 0; --i) add_buffer().resident = true;
    for (auto i = bytes_.draw(1, most_ops_); i > 0; --i) add_op();
    for (Buffer& buffer : graph_.buffers) buffer.returned = !buffer.resident && bytes_.chance(10);
    if (bytes_.chance(10)) graph_.meta = bytes_.pick(kMetas);
    try {
      validate(graph_);
    } catch (const InvalidGraph&) {
      return std::nullopt;
    }
    seal(graph_);
    return std::move(graph_);
  }

 private:
  std::int64_t size() { return bytes_.draw(0, 40) * unit_ + (bytes_.chance(10) ? bytes_.draw(-1, 1) : 0); }

  Buffer& add_buffer() {
    Buffer& buffer = graph_.buffers.emplace_back();
    buffer.bytes = std::max<std::int64_t>(size(), 0);
    const auto kind = bytes_.draw(0, std::ssize(kBufferKindNames) * static_cast<std::int64_t>(kNames.size()) - 1);
    buffer.kind = static_cast<BufferKind>(kind % std::ssize(kBufferKindNames));
    buffer.name = kNames[static_cast<std::size_t>(kind / std::ssize(kBufferKindNames))];
    return buffer;
  }

  // Distinct buffers that are there, counted back from the newest.
  std::vector<BufferId> some(std::int64_t most) {
    std::vector<BufferId> ids;
    const auto there = std::ssize(graph_.buffers);
    for (auto i = there == 0 ? 0 : bytes_.draw(0, most); i > 0; --i) {
      const BufferId id(static_cast<std::int32_t>(there - 1 - bytes_.draw(0, there - 1)));
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    return ids;
  }

  void add_op() {
    Op op;
    op.reads = some(3);
    const auto traits = static_cast<unsigned>(bytes_.draw(0, 255));
    if ((traits & 1) != 0) op.writes = some(3);
    for (auto i = bytes_.draw(0, 2); i > 0; --i) {
      op.creates.emplace_back(graph_.buffers.size());
      add_buffer();
    }
    op.cost_ns = bytes_.draw(0, 20) * cost_unit_;
    op.rng = (traits & 6) == 6;
    op.effect = (traits & 24) == 24;
    op.once = (traits & 24) == 8 && (traits & 6) == 2;
    if ((traits & 96) == 96 && !graph_.ops.empty())
      op.after.emplace_back(static_cast<std::int32_t>(bytes_.draw(0, std::ssize(graph_.ops) - 1)));
    if ((traits & 128) != 0) add_inside(op);
    op.target = bytes_.pick(kTargets);
    op.name = std::to_string(graph_.ops.size()) + std::string(bytes_.pick(kNames));
    op.meta = kMetas[op.name.size() % kMetas.size()];
    graph_.ops.push_back(std::move(op));
  }

  void add_inside(Op& op) {
    op.ticks = static_cast<std::int32_t>(bytes_.draw(1, 4));
    for (auto i = bytes_.draw(0, 2); i > 0; --i) {
      const auto from = static_cast<std::int32_t>(bytes_.draw(0, op.ticks - 1));
      op.scratch.push_back(
          {std::max<std::int64_t>(size(), 0), from, static_cast<std::int32_t>(bytes_.draw(from + 1, op.ticks))});
    }
    if (bytes_.chance(50)) {
      for (std::size_t i = 0; i < op.creates.size(); ++i)
        op.born.push_back(static_cast<std::int32_t>(bytes_.draw(0, op.ticks - 1)));
    }
    for (const BufferId read : op.reads) {
      for (const BufferId created : op.creates) {
        if (graph_.buffer(read).resident || graph_.buffer(created).bytes > graph_.buffer(read).bytes) continue;
        if (bytes_.chance(70)) op.takeover.push_back({read, created});
      }
    }
  }

  ByteSource& bytes_;
  std::int64_t most_ops_;
  std::int64_t unit_ = 1;
  std::int64_t cost_unit_ = 1;
  Graph graph_;
};

}  // namespace

std::optional<Graph> decode_graph(ByteSource& bytes, std::int64_t most_ops) { return Decoder(bytes, most_ops).run(); }

PlanOptions decode_options(ByteSource& bytes) {
  PlanOptions options;
  const auto flags = static_cast<unsigned>(bytes.draw(0, 255));
  options.keep_order = (flags & 3) == 3;
  options.takeover = (flags & 12) != 12;
  options.order_node_budget = bytes.pick(kNodes);
  options.layout_node_budget = bytes.pick(kNodes);
  options.link_gbps = bytes.pick(kLinks);
  options.budget_work = bytes.chance(20) ? bytes.draw(1, 1 << 20) : 0;
  options.seed = static_cast<std::uint64_t>(bytes.draw(0, 3));
  return options;
}

std::int64_t decode_budget(ByteSource& bytes, const Graph& graph) {
  const std::int64_t eighth = program_peak_bytes(graph) / 8;
  return resident_bytes(graph) + bytes.draw(0, 9) * eighth + (bytes.chance(30) ? bytes.draw(0, eighth) : 0);
}

}  // namespace stowage::fuzz
