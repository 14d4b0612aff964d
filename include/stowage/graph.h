// The Graph: one training step as buffers and ops; bytes and costs only. See docs/formats.md for the file form and its
// rules.
//
//   op 0  mm    reads wte         creates mm_1            wte  ██████████████  resident, never planned
//   op 1  relu  reads mm_1        creates relu_1          mm_1 ░░░░            live from its creation to its last use
//   op 2  sum   reads relu_1      creates loss            loss          ░░░░   returned: live to the end
//
// A buffer is one allocation. Views do not appear: an op that touches a view touches its buffer. List order of ops is
// program order; it defines which version of a buffer each op sees (graph/dependencies.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stowage/ids.h"

namespace stowage {

enum class BufferKind : std::uint8_t {
  kParameter,
  kOptimizerState,
  kModuleBuffer,
  kInput,
  kConstant,
  kActivation,
  kGradient,
  kTemporary,
  kOutput,
};
inline constexpr std::array<std::string_view, 9> kBufferKindNames = {"parameter", "optimizer_state", "module_buffer",
                                                                     "input",     "constant",        "activation",
                                                                     "gradient",  "temporary",       "output"};

struct Buffer {
  std::string name;
  std::int64_t bytes = 0;
  BufferKind kind = BufferKind::kTemporary;
  bool resident = false;  // exists before and after the step, outside the arena
  bool returned = false;  // non-resident only: live to the end of the step
  std::string meta;       // raw JSON object, or empty
  bool leaves = false;    // resident only: a plan may let it wait on the host (Plan::away)
};

// Memory that an op takes and gives back while it runs: live in ticks [from, to) of the op.
struct Scratch {
  std::int64_t bytes = 0;
  std::int32_t from = 0;
  std::int32_t to = 1;
};

// In-place reuse: the kernel may write `created` over `read`: same strides, pointwise, bytes of created <= bytes of
// read. A plan may then give both one address, where read's life ends with the op.
struct ReusePair {
  BufferId read;
  BufferId created;
};
using Takeover = ReusePair;  // the name up to 0.2

struct Op {
  std::string name;
  std::string target;
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;  // mutated in place; the old content is read too
  std::vector<BufferId> creates;
  std::vector<std::int32_t> born;  // born[i]: tick from which creates[i] is live; empty means all 0
  std::int32_t ticks = 1;
  std::vector<Scratch> scratch;
  std::int64_t cost_ns = 0;
  bool rng = false;     // all rng ops keep their program order
  bool effect = false;  // all effect ops keep their program order, and none runs twice
  bool once = false;    // never runs twice: its kernel does not repeat its bits
  // What in-place reuse may use; named as in the file
  std::vector<ReusePair> takeover;
  std::vector<OpId> after;  // smaller ids that must run earlier, besides what the buffers imply
  std::string meta;         // raw JSON object, or empty
};

struct Graph {
  std::string name;
  std::int64_t align = 64;  // every offset in a plan is a multiple of this
  std::vector<Buffer> buffers;
  std::vector<Op> ops;
  std::string meta;    // raw JSON object, or empty
  std::string sha256;  // of the file's uncompressed bytes (lower-case hex); set by the reader and by seal()

  [[nodiscard]] const Buffer& buffer(BufferId id) const { return buffers[id.index()]; }
  [[nodiscard]] const Op& op(OpId id) const { return ops[id.index()]; }
  // Bytes that a buffer or a scratch of `bytes` takes in the arena.
  [[nodiscard]] std::int64_t padded(std::int64_t bytes) const { return (bytes + align - 1) / align * align; }
};

inline std::int32_t born_tick(const Op& op, std::size_t create_index) {
  return op.born.empty() ? 0 : op.born[create_index];
}

// Checks every rule of the graph format that holds between ids (ranges, single creation, creation before use, `after`
// pointing back, ticks, reuse pairs). Throws InvalidGraph naming the rule and the id. O(V + E).
void validate(const Graph& graph);

// Sum of the bytes of resident buffers.
std::int64_t resident_bytes(const Graph& graph);

// Sum of what all ops cost.
std::int64_t program_step_ns(const Graph& graph);

}  // namespace stowage
