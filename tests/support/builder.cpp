#include "support/builder.h"

#include "stowage/io.h"

namespace stowage::testing {
namespace {

std::vector<BufferId> to_ids(std::initializer_list<int> values) {
  std::vector<BufferId> ids;
  for (const int value : values) ids.emplace_back(value);
  return ids;
}

}  // namespace

GraphBuilder::GraphBuilder(std::int64_t align) {
  graph_.name = "built";
  graph_.align = align;
}

int GraphBuilder::resident(std::int64_t bytes) {
  const int id = buffer(bytes);
  graph_.buffers.back().resident = true;
  graph_.buffers.back().kind = BufferKind::kParameter;
  return id;
}

int GraphBuilder::buffer(std::int64_t bytes) {
  Buffer buffer;
  buffer.name = "b" + std::to_string(graph_.buffers.size());
  buffer.bytes = bytes;
  buffer.kind = BufferKind::kActivation;
  graph_.buffers.push_back(buffer);
  return static_cast<int>(graph_.buffers.size()) - 1;
}

int GraphBuilder::returned(std::int64_t bytes) {
  const int id = buffer(bytes);
  graph_.buffers.back().returned = true;
  graph_.buffers.back().kind = BufferKind::kOutput;
  return id;
}

Op& GraphBuilder::op(std::initializer_list<int> reads, std::initializer_list<int> writes,
                     std::initializer_list<int> creates) {
  Op op;
  op.name = "op" + std::to_string(graph_.ops.size());
  op.target = "test::op";
  op.reads = to_ids(reads);
  op.writes = to_ids(writes);
  op.creates = to_ids(creates);
  graph_.ops.push_back(op);
  return graph_.ops.back();
}

Graph GraphBuilder::build() const {
  Graph graph = graph_;
  validate(graph);
  seal(graph);
  return graph;
}

Step run(int op) { return Step::run(OpId(op)); }
Step swap_out(int buffer, int until) { return {Step::Kind::kSwapOut, {}, BufferId(buffer), until}; }
Step swap_in(int buffer, int until) { return {Step::Kind::kSwapIn, {}, BufferId(buffer), until}; }
Placement place(int buffer, int from, int to, std::int64_t offset) { return {BufferId(buffer), from, to, offset}; }

}  // namespace stowage::testing
