// The plan as what torch.cuda.memory._dump_snapshot() would have written had the step run: a segment that is the arena,
// one that holds the residents, and the trace of what comes and goes at which address. It opens in
// docs.pytorch.org/memory_viz and with torch/cuda/_memory_viz.py, beside a snapshot that was measured.
//
//   residents    base ...                     allocated before the trace begins
//   arena        next multiple of 2 MiB ...   alloc and free at planned addresses; a buffer's frames name its op and the user's line
#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "report/pickle.h"
#include "report/report_data.h"

namespace stowage {
namespace {

using report::Pickle;
using report::PlanData;
using report::Rect;

constexpr std::int64_t kBase = std::int64_t{1} << 45;  // any address will do; this one looks like one
constexpr std::int64_t kRound = std::int64_t{2} << 20;

std::int64_t round_up(std::int64_t bytes) { return (bytes + kRound - 1) / kRound * kRound; }

class Snapshot {
 public:
  explicit Snapshot(const PlanData& data) : data_(data), graph_(*data.graph), plan_(*data.plan) {
    std::int64_t sum = 0;
    for (const Buffer& buffer : graph_.buffers)
      if (buffer.resident) sum += graph_.padded(buffer.bytes);
    resident_bytes_ = round_up(sum);
    arena_ = kBase + resident_bytes_;
  }

  std::string run() {
    out_.begin_dict();
    out_.text("segments");
    segments();
    out_.text("device_traces");
    out_.begin_list();
    trace();
    out_.end_list();
    out_.text("external_annotations");
    out_.begin_list(), out_.end_list();
    out_.text("allocator_settings");
    out_.begin_dict();
    out_.field("backend", "stowage plan");
    out_.end_dict();
    out_.end_dict();
    return out_.finish();
  }

 private:
  struct Block {
    std::int64_t address, bytes, requested;
    const Rect* rect;      // nothing: free, or a resident
    const Buffer* buffer;  // a resident
  };

  // ---- What is there when the step has ended

  void segments() {
    out_.begin_list();
    std::vector<Block> blocks;
    std::int64_t at = kBase;
    for (const Buffer& buffer : graph_.buffers) {
      if (!buffer.resident || buffer.bytes == 0) continue;
      blocks.push_back({at, graph_.padded(buffer.bytes), buffer.bytes, nullptr, &buffer});
      at += graph_.padded(buffer.bytes);
    }
    if (!blocks.empty()) segment(kBase, resident_bytes_, blocks);
    blocks.clear();
    const report::Time end = report::time_at(static_cast<std::int64_t>(plan_.steps.size()), 0);
    for (const Rect& rect : data_.rects)
      if (rect.end >= end)
        blocks.push_back({arena_ + rect.offset, graph_.padded(rect.bytes), rect.bytes, &rect, nullptr});
    std::ranges::sort(blocks, {}, &Block::address);
    if (plan_.arena_bytes > 0) segment(arena_, plan_.arena_bytes, blocks);
    out_.end_list();
  }

  void segment(std::int64_t address, std::int64_t bytes, const std::vector<Block>& blocks) {
    std::int64_t active = 0, requested = 0;
    for (const Block& block : blocks) active += block.bytes, requested += block.requested;
    out_.begin_dict();
    out_.field("device", 0);
    out_.field("address", address);
    out_.field("total_size", bytes);
    out_.field("allocated_size", active);
    out_.field("active_size", active);
    out_.field("requested_size", requested);
    out_.field("stream", 0);
    out_.field("segment_type", "large");
    out_.text("segment_pool_id");
    out_.begin_list(), out_.integer(0), out_.integer(0), out_.end_list();
    out_.text("frames");
    out_.begin_list(), out_.end_list();
    out_.text("blocks");
    out_.begin_list();
    std::int64_t at = address;
    for (const Block& b : blocks) {
      if (b.address > at) block({at, b.address - at, 0, nullptr, nullptr});
      block(b);
      at = b.address + b.bytes;
    }
    if (at < address + bytes) block({at, address + bytes - at, 0, nullptr, nullptr});
    out_.end_list();
    out_.end_dict();
  }

  void block(const Block& block) {
    const bool used = block.rect != nullptr || block.buffer != nullptr;
    out_.begin_dict();
    out_.field("address", block.address);
    out_.field("size", block.bytes);
    out_.field("requested_size", block.requested);
    out_.field("state", used ? "active_allocated" : "inactive");
    out_.text("frames");
    if (block.rect != nullptr) {
      frames(*block.rect);
    } else {
      out_.begin_list();
      if (block.buffer != nullptr) frame(block.buffer->name, "resident", 0);
      out_.end_list();
    }
    out_.end_dict();
  }

  // ---- What came and went

  void trace() {
    struct Event {
      report::Time at;
      bool alloc;
      const Rect* rect;
    };
    std::vector<Event> events;
    const report::Time end = report::time_at(static_cast<std::int64_t>(plan_.steps.size()), 0);
    for (const Rect& rect : data_.rects) {
      events.push_back({rect.start, true, &rect});
      if (rect.end < end) events.push_back({rect.end, false, &rect});
    }
    std::ranges::stable_sort(
        events, [](const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.alloc < b.alloc; });
    out_.begin_list();
    for (const auto& [address, bytes] : {std::pair{kBase, resident_bytes_}, {arena_, plan_.arena_bytes}}) {
      if (bytes == 0) continue;
      event("segment_alloc", address, bytes, 0);
      out_.text("frames");
      out_.begin_list(), out_.end_list();
      out_.end_dict();
    }
    std::int64_t at = kBase;
    for (const Buffer& buffer : graph_.buffers) {
      if (!buffer.resident || buffer.bytes == 0) continue;
      event("alloc", at, buffer.bytes, 0);
      out_.text("frames");
      out_.begin_list(), frame(buffer.name, "resident", 0), out_.end_list();
      out_.end_dict();
      at += graph_.padded(buffer.bytes);
    }
    for (const Event& e : events) {
      for (const char* action : {"alloc", "free_requested", "free_completed"}) {
        if (e.alloc != (*action == 'a')) continue;
        event(action, arena_ + e.rect->offset, e.rect->bytes, micros(e.at));
        out_.text("frames");
        frames(*e.rect);
        out_.end_dict();
      }
    }
    out_.end_list();
  }

  std::int64_t micros(report::Time at) const {
    const auto step = static_cast<std::size_t>(report::step_of(at));
    return data_.program_step_ns > 0 && step < data_.timing.steps.size() ? data_.timing.steps[step].from_ns / 1000
                                                                         : report::step_of(at);
  }

  void event(std::string_view action, std::int64_t address, std::int64_t bytes, std::int64_t time_us) {
    out_.begin_dict();
    out_.field("action", action);
    out_.field("addr", address);
    out_.field("size", bytes);
    out_.field("stream", 0);
    out_.field("time_us", time_us);
  }

  // Innermost first: the buffer, its op, the line of the user's code.
  void frames(const Rect& rect) {
    static constexpr std::array<const char*, 4> origins = {"", " (recomputed)", " (back from the host)", " (scratch)"};
    out_.begin_list();
    const Op* op = rect.op.valid() ? &graph_.op(rect.op) : nullptr;
    const std::string& name = rect.buffer.valid() ? graph_.buffer(rect.buffer).name : op->name;
    frame(name + origins[static_cast<std::size_t>(rect.origin)], "buffer", 0);
    if (op != nullptr) {
      frame(op->target, "op", rect.op.value);
      const std::string line = report::source_line(*op);
      const std::size_t colon = line.rfind(':');
      if (colon != std::string::npos) frame("step", line.substr(0, colon), std::atoll(line.c_str() + colon + 1));
    }
    out_.end_list();
  }

  void frame(std::string_view name, std::string_view file, std::int64_t line) {
    out_.begin_dict();
    out_.field("name", name);
    out_.field("filename", file);
    out_.field("line", line);
    out_.end_dict();
  }

  const PlanData& data_;
  const Graph& graph_;
  const Plan& plan_;
  std::int64_t resident_bytes_ = 0;
  std::int64_t arena_ = 0;
  Pickle out_;
};

}  // namespace

std::string report_snapshot(const ReportInput& input) {
  const PlanData data = report::plan_data(*input.graph, *input.plan, input.options);
  return Snapshot(data).run();
}

}  // namespace stowage
