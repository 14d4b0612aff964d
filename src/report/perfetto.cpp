// The plan as trace-event JSON, for ui.perfetto.dev and chrome://tracing. JSON and not Perfetto's protobuf: both
// viewers open it, it needs no library, and people can read it; what it lacks (interned strings) costs size only, and
// gzip takes that back.
//
//   plan           ops         |mm|relu|...|mm (again)|     slices, predicted times
//                  copies out      |----|                   slices, an arrow from each copy out to the copies in of its buffer
//                  copies in                  |---|
//                  live bytes  a counter, beside lower bound and budget less residents
//   program order  ops, live bytes
//
// Where the graph has no costs every op takes a microsecond, so that there is something to see.
#include <array>

#include "report/report_data.h"
#include "stowage/json.h"

namespace stowage {
namespace {

using io::ObjectWriter;
using report::PlanData;

constexpr int kPlan = 1, kProgram = 2;                  // processes
constexpr int kOps = 1, kCopiesOut = 2, kCopiesIn = 3;  // threads

class Trace {
 public:
  Trace(const PlanData& data, const ReportOptions& options)
      : data_(data), graph_(*data.graph), plan_(*data.plan), options_(options), timed_(data.program_step_ns > 0) {}

  std::string run() {
    out_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
    name_tracks();
    plan_steps();
    program_ops();
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  ObjectWriter begin(const char* phase, int process, int thread) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    ObjectWriter event(out_);
    event.field("ph", phase);
    event.field("pid", process);
    event.field("tid", thread);
    return event;
  }

  void name(const char* what, int process, int thread, const char* text) {
    ObjectWriter event = begin("M", process, thread);
    event.field("name", what);
    event.key("args");
    ObjectWriter args(out_);
    args.field("name", text);
    args.close();
    event.close();
  }

  void name_tracks() {
    name("process_name", kPlan, 0, "plan");
    name("thread_name", kPlan, kOps, "ops");
    name("thread_name", kPlan, kCopiesOut, "copies out");
    name("thread_name", kPlan, kCopiesIn, "copies in");
    name("process_name", kProgram, 0, "program order");
    name("thread_name", kProgram, kOps, "ops");
  }

  static double micros(std::int64_t ns) { return static_cast<double>(ns) / 1000; }

  void slice(int process, int thread, std::string_view title, double from, double to, const Op* op,
             std::int64_t bytes) {
    ObjectWriter event = begin("X", process, thread);
    event.field("name", title);
    event.field("ts", from);
    event.field("dur", to - from);
    event.key("args");
    ObjectWriter args(out_);
    if (op != nullptr) {
      args.field("target", op->target);
      if (const std::string line = report::source_line(*op); !line.empty()) args.field("line", line);
    }
    args.field(op != nullptr ? "live_bytes" : "bytes", bytes);
    args.close();
    event.close();
  }

  void counter(int process, double at, std::int64_t live) {
    ObjectWriter event = begin("C", process, 0);
    event.field("name", "live bytes");
    event.field("ts", at);
    event.key("args");
    ObjectWriter args(out_);
    args.field("bytes", live);
    args.close();
    event.close();
  }

  void arrow(const char* phase, int thread, double at, std::int32_t id) {
    ObjectWriter event = begin(phase, kPlan, thread);
    event.field("name", "on the host");
    event.field("cat", "swap");
    event.field("id", id);
    event.field("ts", at);
    if (*phase == 'f') event.field("bp", "e");
    event.close();
  }

  void level(const char* title, std::int64_t bytes, double end) {
    for (const double at : {0.0, end}) {
      ObjectWriter event = begin("C", kPlan, 0);
      event.field("name", title);
      event.field("ts", at);
      event.key("args");
      ObjectWriter args(out_);
      args.field("bytes", bytes);
      args.close();
      event.close();
    }
  }

  void plan_steps() {
    double end = 0;
    for (std::size_t s = 0; s < plan_.steps.size(); ++s) {
      const Step& step = plan_.steps[s];
      const budget::StepTime& time = data_.timing.steps[s];
      const double from = timed_ ? micros(time.from_ns) : static_cast<double>(s);
      const double to = timed_ ? micros(time.to_ns) : static_cast<double>(s + 1);
      if (step.kind != Step::Kind::kRun) {
        copy(static_cast<std::int32_t>(s), from, to);
        continue;
      }
      const Op& op = graph_.op(step.op);
      slice(kPlan, kOps, data_.again[s] ? op.name + " (again)" : op.name, from, to, &op, data_.curve.live_bytes[s]);
      counter(kPlan, from, data_.curve.live_bytes[s]);
      end = to;
    }
    counter(kPlan, end, 0);
    if (options_.lower_bound_bytes) level("lower bound", *options_.lower_bound_bytes, end);
    if (options_.budget_bytes) level("budget less residents", *options_.budget_bytes - data_.resident_bytes, end);
  }

  void copy(std::int32_t s, double from, double to) {
    const Step& step = plan_.steps[static_cast<std::size_t>(s)];
    const Buffer& buffer = graph_.buffer(step.buffer);
    const bool out = step.kind == Step::Kind::kSwapOut;
    slice(kPlan, out ? kCopiesOut : kCopiesIn, buffer.name, from, to, nullptr, buffer.bytes);
    arrow(out ? "s" : "f", out ? kCopiesOut : kCopiesIn, out ? from : to, step.buffer.value);
  }

  void program_ops() {
    double now = 0;
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      const double to = now + (timed_ ? micros(graph_.ops[i].cost_ns) : 1);
      slice(kProgram, kOps, graph_.ops[i].name, now, to, &graph_.ops[i], data_.program_curve.live_bytes[i]);
      counter(kProgram, now, data_.program_curve.live_bytes[i]);
      now = to;
    }
    counter(kProgram, now, 0);
  }

  const PlanData& data_;
  const Graph& graph_;
  const Plan& plan_;
  const ReportOptions& options_;
  bool timed_;
  bool first_ = true;
  std::string out_;
};

}  // namespace

std::string report_perfetto(const ReportInput& input) {
  const PlanData data = report::plan_data(*input.graph, *input.plan, input.options);
  return Trace(data, input.options).run();
}

}  // namespace stowage
