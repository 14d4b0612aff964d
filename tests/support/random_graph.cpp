#include "support/random_graph.h"

#include <algorithm>
#include <array>

#include "stowage/io.h"

namespace stowage::testing {
namespace {

constexpr std::array<const char*, 9> kTargets = {
    "aten::mm",   "aten::add_",        "aten::zero_", "aten::_log_softmax", "aten::nll_loss_forward",
    "aten::copy", "aten::linalg_norm", "aten::sqrt",  "aten::add"};

class Generator {
 public:
  Generator(std::mt19937_64& random, const RandomGraphOptions& options) : random_(random), options_(options) {}

  Graph run() {
    graph_.name = "random";
    graph_.align = options_.align;
    for (int i = 0; i < options_.residents; ++i) {
      Buffer& buffer = add_buffer();
      buffer.resident = true;
      buffer.leaves = options_.leaving > 0 && chance(random_, options_.leaving);
    }
    for (int i = 0; i < options_.ops; ++i) add_op(i);
    for (Buffer& buffer : graph_.buffers) buffer.returned = !buffer.resident && chance(random_, 10);
    for (Op& op : graph_.ops) op.once = options_.ordering && chance(random_, 10);
    validate(graph_);
    seal(graph_);
    return graph_;
  }

 private:
  Buffer& add_buffer() {
    Buffer buffer;
    buffer.name = "b" + std::to_string(graph_.buffers.size());
    buffer.bytes = chance(random_, 10) ? 0 : draw(random_, 1, options_.most_bytes);
    buffer.kind = static_cast<BufferKind>(draw(random_, 0, std::ssize(kBufferKindNames) - 1));
    graph_.buffers.push_back(buffer);
    return graph_.buffers.back();
  }

  // Distinct existing buffers, recent ones more often.
  std::vector<BufferId> pick(std::int64_t most) {
    std::vector<BufferId> ids;
    const auto there = std::ssize(graph_.buffers);
    for (std::int64_t i = there == 0 ? 0 : draw(random_, 0, most); i > 0; --i) {
      const std::int64_t oldest = chance(random_, 60) ? std::max<std::int64_t>(0, there - 5) : 0;
      const BufferId id(static_cast<std::int32_t>(draw(random_, oldest, there - 1)));
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    return ids;
  }

  void add_inside(Op& op) {
    op.ticks = static_cast<std::int32_t>(draw(random_, 1, 3));
    for (auto i = draw(random_, 0, 2); i > 0; --i) {
      const auto from = static_cast<std::int32_t>(draw(random_, 0, op.ticks - 1));
      op.scratch.push_back(
          {draw(random_, 0, options_.most_bytes), from, static_cast<std::int32_t>(draw(random_, from + 1, op.ticks))});
    }
    if (chance(random_, 50)) {
      for (std::size_t i = 0; i < op.creates.size(); ++i)
        op.born.push_back(static_cast<std::int32_t>(draw(random_, 0, op.ticks - 1)));
    }
    for (const BufferId read : op.reads) {
      for (const BufferId created : op.creates) {
        if (graph_.buffer(read).resident || graph_.buffer(created).bytes > graph_.buffer(read).bytes) continue;
        if (chance(random_, 50)) op.takeover.push_back({read, created});
      }
    }
  }

  void add_op(int id) {
    Op op;
    op.name = "op" + std::to_string(id);
    op.target =
        options_.targets ? kTargets[static_cast<std::size_t>(draw(random_, 0, std::ssize(kTargets) - 1))] : "test::op";
    op.reads = pick(3);
    if (options_.in_place && chance(random_, 30))
      op.writes = pick(options_.most_writes > 1 && chance(random_, 30) ? options_.most_writes : 1);
    for (auto i = draw(random_, 0, 2); i > 0; --i) {
      op.creates.emplace_back(graph_.buffers.size());
      add_buffer();
    }
    op.cost_ns = draw(random_, 0, options_.most_cost_ns);
    if (options_.insides) add_inside(op);
    if (options_.ordering) {
      op.rng = chance(random_, 15);
      op.effect = chance(random_, 10);
      if (id > 0 && chance(random_, 15)) op.after.emplace_back(static_cast<std::int32_t>(draw(random_, 0, id - 1)));
    }
    graph_.ops.push_back(op);
  }

  std::mt19937_64& random_;
  const RandomGraphOptions& options_;
  Graph graph_;
};

}  // namespace

Graph random_graph(std::mt19937_64& random, const RandomGraphOptions& options) {
  return Generator(random, options).run();
}

std::int64_t draw(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

bool chance(std::mt19937_64& random, int percent) { return draw(random, 0, 99) < percent; }

}  // namespace stowage::testing
