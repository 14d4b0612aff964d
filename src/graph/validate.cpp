// Checks the rules of the graph format that hold between ids. One pass over buffers, one over ops, one over buffers
// again.
//
// "No id twice" is checked with stamps: read_by[b] is the last op that named b in its reads, so that nothing is cleared
// between ops. O(V + E).
#include <limits>
#include <utility>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "stowage/error.h"
#include "stowage/graph.h"

namespace stowage {
namespace {

constexpr std::int64_t kUnseen = -1;

class Validator {
 public:
  explicit Validator(const Graph& graph)
      : graph_(graph),
        creator_(graph.buffers.size(), kUnseen),
        read_by_(graph.buffers.size(), kUnseen),
        written_by_(graph.buffers.size(), kUnseen),
        awaited_by_(graph.ops.size(), kUnseen) {}

  void run() {
    check_graph();
    for (id_ = 0; id_ < std::ssize(graph_.buffers); ++id_) check_buffer(graph_.buffers[static_cast<std::size_t>(id_)]);
    for (id_ = 0; id_ < std::ssize(graph_.ops); ++id_) check_op(graph_.ops[static_cast<std::size_t>(id_)]);
    for (id_ = 0; id_ < std::ssize(graph_.buffers); ++id_) {
      const auto& buffer = graph_.buffers[static_cast<std::size_t>(id_)];
      if (!buffer.resident && creator_[BufferId(static_cast<std::size_t>(id_))] == kUnseen) {
        fail_buffer(buffer, "no op creates it, and it is not resident");
      }
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_buffer(const Buffer& buffer, const Parts&... parts) const {
    throw InvalidGraph(concat("buffer ", id_, " ", quote(buffer.name), ": ", parts...));
  }
  template <class... Parts>
  [[noreturn]] void fail_op(const Op& op, const Parts&... parts) const {
    throw InvalidGraph(concat("op ", id_, " ", quote(op.name), ": ", parts...));
  }

  void check_graph() const {
    if (graph_.align < 1 || graph_.align > kMaxExact) throw InvalidGraph("align: must be from 1 to 2^53 - 1");
    constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
    if (graph_.buffers.size() > most) throw InvalidGraph("buffers: there are more than 2^31 - 1");
    if (graph_.ops.size() > most) throw InvalidGraph("ops: there are more than 2^31 - 1");
  }

  // Every sum of sizes that a planner forms is a part of this total, so none overflows. Residents count as they are;
  // the rest as padded, which is what an arena without reuse would take.
  [[nodiscard]] bool add_to_total(std::int64_t bytes) {
    total_bytes_ += bytes;  // both at most 2^54: no overflow
    return total_bytes_ <= kMaxExact;
  }

  void check_buffer(const Buffer& buffer) {
    if (buffer.bytes < 0 || buffer.bytes > kMaxExact) fail_buffer(buffer, "bytes: must be from 0 to 2^53 - 1");
    if (buffer.resident && buffer.returned) fail_buffer(buffer, "returned: a resident buffer cannot be returned");
    if (buffer.leaves && !buffer.resident) fail_buffer(buffer, "leaves: only a resident buffer can wait on the host");
    if (!add_to_total(buffer.resident ? buffer.bytes : graph_.padded(buffer.bytes))) {
      fail_buffer(buffer, "bytes: the sum of all sizes, each padded to align, reaches 2^53");
    }
  }

  void check_op(const Op& op) {
    check_creates(op);
    check_uses(op, "reads", op.reads, read_by_);
    check_uses(op, "writes", op.writes, written_by_);
    check_cost(op);
    check_inside(op);
    check_reuse(op);
    check_after(op);
  }

  void check_range(const Op& op, std::string_view field, std::size_t position, BufferId id) const {
    if (id.valid() && id.index() < graph_.buffers.size()) return;
    fail_op(op, field, "[", position, "]: buffer id ", id.value, " is out of range (", graph_.buffers.size(),
            " buffers)");
  }

  void check_creates(const Op& op) {
    for (std::size_t i = 0; i < op.creates.size(); ++i) {
      const BufferId id = op.creates[i];
      check_range(op, "creates", i, id);
      if (graph_.buffer(id).resident) fail_op(op, "creates[", i, "]: buffer ", id.value, " is resident");
      const std::int64_t earlier = std::exchange(creator_[id], id_);
      if (earlier == id_) fail_op(op, "creates[", i, "]: buffer ", id.value, " is in the list twice");
      if (earlier != kUnseen)
        fail_op(op, "creates[", i, "]: buffer ", id.value, " was already created by op ", earlier);
    }
  }

  void check_uses(const Op& op, std::string_view field, const std::vector<BufferId>& ids,
                  IdVector<BufferId, std::int64_t>& used_by) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const BufferId id = ids[i];
      check_range(op, field, i, id);
      if (std::exchange(used_by[id], id_) == id_) {
        fail_op(op, field, "[", i, "]: buffer ", id.value, " is in the list twice");
      }
      const std::int64_t creator = creator_[id];
      if (creator == id_) fail_op(op, field, "[", i, "]: buffer ", id.value, " is also in creates");
      if (creator == kUnseen && !graph_.buffer(id).resident) {
        fail_op(op, field, "[", i, "]: buffer ", id.value, " is used before an op creates it");
      }
    }
  }

  void check_cost(const Op& op) {
    if (op.cost_ns < 0 || op.cost_ns > kMaxExact) fail_op(op, "cost_ns: must be from 0 to 2^53 - 1");
    total_ns_ += op.cost_ns;
    if (total_ns_ > kMaxExact) fail_op(op, "cost_ns: the sum over all ops reaches 2^53");
  }

  void check_inside(const Op& op) {
    if (op.ticks < 1) fail_op(op, "ticks: ", op.ticks, " is less than 1");
    for (std::size_t i = 0; i < op.scratch.size(); ++i) {
      const Scratch& scratch = op.scratch[i];
      if (scratch.bytes < 0 || scratch.bytes > kMaxExact)
        fail_op(op, "scratch[", i, "]: bytes must be from 0 to 2^53 - 1");
      if (scratch.from < 0 || scratch.from >= scratch.to || scratch.to > op.ticks) {
        fail_op(op, "scratch[", i, "]: ticks [", scratch.from, ", ", scratch.to, ") are not inside [0, ", op.ticks,
                ")");
      }
      if (!add_to_total(graph_.padded(scratch.bytes))) {
        fail_op(op, "scratch[", i, "]: the sum of all sizes, each padded to align, reaches 2^53");
      }
    }
    if (op.born.empty()) return;
    if (op.born.size() != op.creates.size()) {
      fail_op(op, "born: has ", op.born.size(), " entries for ", op.creates.size(), " created buffers");
    }
    for (std::size_t i = 0; i < op.born.size(); ++i) {
      if (op.born[i] < 0 || op.born[i] >= op.ticks) {
        fail_op(op, "born[", i, "]: tick ", op.born[i], " is not inside [0, ", op.ticks, ")");
      }
    }
  }

  void check_reuse(const Op& op) const {
    for (std::size_t i = 0; i < op.takeover.size(); ++i) {
      const auto [read, created] = op.takeover[i];
      check_range(op, "takeover", i, read);
      check_range(op, "takeover", i, created);
      if (read_by_[read] != id_) fail_op(op, "takeover[", i, "]: buffer ", read.value, " is not in reads");
      if (creator_[created] != id_) fail_op(op, "takeover[", i, "]: buffer ", created.value, " is not in creates");
      if (graph_.buffer(read).resident) fail_op(op, "takeover[", i, "]: buffer ", read.value, " is resident");
      if (graph_.buffer(created).bytes > graph_.buffer(read).bytes) {
        fail_op(op, "takeover[", i, "]: buffer ", created.value, " is larger than buffer ", read.value);
      }
    }
  }

  void check_after(const Op& op) {
    for (std::size_t i = 0; i < op.after.size(); ++i) {
      const OpId id = op.after[i];
      if (!id.valid() || id.value >= id_)
        fail_op(op, "after[", i, "]: op id ", id.value, " is not smaller than its own");
      if (std::exchange(awaited_by_[id], id_) == id_) {
        fail_op(op, "after[", i, "]: op ", id.value, " is in the list twice");
      }
    }
  }

  const Graph& graph_;
  std::int64_t id_ = 0;  // of the buffer or op under check
  std::int64_t total_bytes_ = 0;
  std::int64_t total_ns_ = 0;
  IdVector<BufferId, std::int64_t> creator_;     // the op that creates a buffer
  IdVector<BufferId, std::int64_t> read_by_;     // the last op that names a buffer in reads
  IdVector<BufferId, std::int64_t> written_by_;  // the last op that names a buffer in writes
  IdVector<OpId, std::int64_t> awaited_by_;      // the last op that names an op in after
};

}  // namespace

void validate(const Graph& graph) { Validator(graph).run(); }

std::int64_t resident_bytes(const Graph& graph) {
  std::int64_t sum = 0;
  for (const Buffer& buffer : graph.buffers) sum += buffer.resident ? buffer.bytes : 0;
  return sum;
}

std::int64_t program_step_ns(const Graph& graph) {
  std::int64_t sum = 0;
  for (const Op& op : graph.ops) sum += op.cost_ns;
  return sum;
}

}  // namespace stowage
