#include "report/page_data.h"

#include <array>
#include <bit>
#include <optional>
#include <unordered_map>

#include "report/sections.h"
#include "stowage/json.h"

namespace stowage::report {
namespace {

using io::ObjectWriter;

static_assert(std::endian::native == std::endian::little, "columns are written as they lie in memory");

template <class List, class Text>
void strings(std::string& out, ObjectWriter& object, std::string_view name, const List& list, Text text) {
  object.key(name);
  char separator = '[';
  for (const auto& item : list) {
    out += separator;
    separator = ',';
    io::append_string(out, text(item));
  }
  out += list.empty() ? "[]" : "]";
}

// Texts that repeat are written once.
class Table {
 public:
  std::int32_t id(const std::string& text) {
    const auto [at, fresh] = ids_.try_emplace(text, static_cast<std::int32_t>(texts_.size()));
    if (fresh) texts_.push_back(text);
    return at->second;
  }
  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::string> texts_;
};

constexpr auto itself = [](const std::string& text) -> const std::string& { return text; };

class PlanWriter {
 public:
  PlanWriter(std::string& out, std::string& columns, const PlanData& data, const ReportOptions& options)
      : out_(out), columns_(columns), data_(data), graph_(*data.graph), plan_(*data.plan), options_(options) {}

  void write() {
    ObjectWriter object(out_);
    figures(object);
    buffers(object);
    ops(object);
    steps(object);
    rects(object, "rects", data_.rects, true);
    rects(object, "program_rects", data_.program_rects, false);
    column(object, "program_live", as_doubles(data_.program_curve.live_bytes));
    column(object, "program_at", positions(data_.program_curve, true));
    decisions(object);
    object.close();
  }

 private:
  static std::vector<double> as_doubles(const std::vector<std::int64_t>& values) {
    return {values.begin(), values.end()};
  }

  // Appends the values to the columns and names them by where they begin and how many they are.
  template <class T>
  void column(ObjectWriter& object, std::string_view name, const std::vector<T>& values) {
    columns_.resize((columns_.size() + 7) / 8 * 8);
    object.raw(name, "[" + std::to_string(columns_.size()) + "," + std::to_string(values.size()) + "]");
    if (!values.empty()) columns_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }

  void optional_field(ObjectWriter& object, std::string_view name, const std::optional<std::int64_t>& value) {
    if (value) {
      object.field(name, *value);
    } else {
      object.null(name);
    }
  }

  void figures(ObjectWriter& object) {
    object.field("name", graph_.name);
    object.field("sha256", graph_.sha256);
    object.field("align", graph_.align);
    object.field("arena_bytes", plan_.arena_bytes);
    object.field("resident_bytes", data_.resident_bytes);
    object.field("peak_bytes", data_.curve.peak_bytes);
    object.field("peak_step", data_.curve.peak_step);
    object.field("program_peak_bytes", data_.program_curve.peak_bytes);
    object.field("program_peak_step", data_.program_curve.peak_step);
    optional_field(object, "budget_bytes", options_.budget_bytes);
    optional_field(object, "lower_bound_bytes", options_.lower_bound_bytes);
    object.field("step_ns", data_.timing.step_ns);
    object.field("end_wait_ns", data_.timing.end.wait_ns);
    object.field("program_step_ns", data_.program_step_ns);
    object.field("link_gbps", options_.link_gbps);
    const Stages& stages = data_.decisions.stages;
    object.key("stages");
    ObjectWriter inner(out_);
    inner.field("program", stages.program);
    inner.field("order", stages.order);
    inner.field("recompute", stages.recompute);
    inner.field("swap", stages.swap);
    inner.field("takeover", stages.in_place_reuse);
    inner.close();
  }

  void buffers(ObjectWriter& object) {
    strings(out_, object, "kinds", kBufferKindNames, [](std::string_view kind) { return kind; });
    strings(out_, object, "buffer_names", graph_.buffers, [](const Buffer& b) -> const std::string& { return b.name; });
    std::vector<double> bytes;
    std::vector<std::uint8_t> kinds, flags;
    std::vector<std::int32_t> creators(graph_.buffers.size(), -1);
    for (const Buffer& buffer : graph_.buffers) {
      bytes.push_back(static_cast<double>(buffer.bytes));
      kinds.push_back(static_cast<std::uint8_t>(buffer.kind));
      flags.push_back(static_cast<std::uint8_t>((buffer.resident ? 1 : 0) | (buffer.returned ? 2 : 0)));
    }
    for (std::size_t i = 0; i < graph_.ops.size(); ++i)
      for (const BufferId b : graph_.ops[i].creates) creators[b.index()] = static_cast<std::int32_t>(i);
    column(object, "buffer_bytes", bytes);
    column(object, "buffer_kind", kinds);
    column(object, "buffer_flags", flags);
    column(object, "buffer_op", creators);
  }

  void ops(ObjectWriter& object) {
    Table targets, lines;
    std::vector<std::int32_t> target, line;
    std::vector<double> cost;
    for (const Op& op : graph_.ops) {
      target.push_back(targets.id(op.target));
      const std::string text = source_line(op);
      line.push_back(text.empty() ? -1 : lines.id(text));
      cost.push_back(static_cast<double>(op.cost_ns));
    }
    strings(out_, object, "op_names", graph_.ops, [](const Op& op) -> const std::string& { return op.name; });
    strings(out_, object, "targets", targets.texts(), itself);
    strings(out_, object, "lines", lines.texts(), itself);
    column(object, "op_target", target);
    column(object, "op_line", line);
    column(object, "op_cost_ns", cost);
  }

  // kind: 0 run, 1 run again, 2 out, 3 in; id: op or buffer.
  void steps(ObjectWriter& object) {
    std::vector<std::uint8_t> kind;
    std::vector<std::int32_t> id;
    std::vector<double> from, to;
    for (std::size_t s = 0; s < plan_.steps.size(); ++s) {
      const Step& step = plan_.steps[s];
      const bool run = step.kind == Step::Kind::kRun;
      kind.push_back(run ? (data_.again[s] ? 1 : 0) : step.kind == Step::Kind::kSwapOut ? 2 : 3);
      id.push_back(run ? step.op.value : step.buffer.value);
      const budget::StepTime& time = data_.timing.steps[s];
      from.push_back(static_cast<double>(time.from_ns));
      to.push_back(static_cast<double>(time.to_ns));
    }
    column(object, "step_kind", kind);
    column(object, "step_id", id);
    column(object, "step_from_ns", from);
    column(object, "step_to_ns", to);
    column(object, "step_live", as_doubles(data_.curve.live_bytes));
    column(object, "step_at", positions(data_.curve, false));
  }

  double position(Time time, bool program) const {
    const std::int32_t step = step_of(time), tick = tick_of(time);
    if (tick == 0) return step;
    return step + static_cast<double>(tick) / ticks(step, program);
  }
  std::int32_t ticks(std::int32_t step, bool program) const {
    if (program) return graph_.ops[static_cast<std::size_t>(step)].ticks;
    const Step& what = plan_.steps[static_cast<std::size_t>(step)];
    return what.kind == Step::Kind::kRun ? graph_.op(what.op).ticks : 1;
  }
  // Of the heaviest moment of each step.
  std::vector<double> positions(const Curve& curve, bool program) const {
    std::vector<double> result;
    for (std::size_t s = 0; s < curve.heaviest.size(); ++s)
      result.push_back(position(checker::time_at(static_cast<std::int64_t>(s), curve.heaviest[s]), program));
    return result;
  }

  // What the buffers tell already is left out: scratch has -1 - op where others have their buffer.
  void rects(ObjectWriter& object, std::string_view name, const std::vector<Rect>& rects, bool placed) {
    std::vector<double> from, to, offset, scratch;
    std::vector<std::int32_t> buffer;
    std::vector<std::uint8_t> origin;
    for (const Rect& rect : rects) {
      from.push_back(position(rect.start, !placed));
      to.push_back(position(rect.end, !placed));
      buffer.push_back(rect.buffer.valid() ? rect.buffer.value : -1 - rect.op.value);
      if (!rect.buffer.valid()) scratch.push_back(static_cast<double>(rect.bytes));
      offset.push_back(static_cast<double>(rect.offset));
      origin.push_back(static_cast<std::uint8_t>(rect.origin));
    }
    object.key(name);
    ObjectWriter inner(out_);
    inner.field("count", rects.size());
    column(inner, "from", from);
    column(inner, "to", to);
    column(inner, "buffer", buffer);
    column(inner, "scratch_bytes", scratch);
    if (placed) {
      column(inner, "offset", offset);
      column(inner, "origin", origin);
      lying_over(inner, rects);
    }
    inner.close();
  }

  // [[rectangle, buffer]]
  void lying_over(ObjectWriter& object, const std::vector<Rect>& rects) {
    object.key("over");
    out_ += '[';
    bool first = true;
    for (std::size_t i = 0; i < rects.size(); ++i) {
      if (!rects[i].over.valid()) continue;
      out_ += first ? "[" : ",[";
      first = false;
      io::append_int(out_, static_cast<std::int64_t>(i));
      out_ += ',';
      io::append_int(out_, rects[i].over.value);
      out_ += ']';
    }
    out_ += ']';
  }

  void decisions(ObjectWriter& object) {
    static constexpr std::array<const char*, 4> names = {"recompute", "swap", "takeover", "move"};
    object.key("decisions");
    char separator = '[';
    for (const Decision& decision : data_.decisions.list) {
      out_ += separator;
      separator = ',';
      ObjectWriter inner(out_);
      inner.field("kind", names[static_cast<std::size_t>(decision.kind)]);
      inner.field("from", decision.from);
      inner.field("to", decision.to);
      inner.field("bytes", decision.bytes);
      optional_field(inner, "saved", decision.saved_bytes);
      inner.field("cost_ns", decision.cost_ns);
      ids(inner, "buffers", decision.buffers);
      ids(inner, "ops", decision.ops);
      inner.close();
    }
    out_ += data_.decisions.list.empty() ? "[]" : "]";
  }

  template <class Ids>
  void ids(ObjectWriter& object, std::string_view name, const Ids& list) {
    object.key(name);
    char separator = '[';
    for (const auto id : list) {
      out_ += separator;
      separator = ',';
      io::append_int(out_, id.value);
    }
    out_ += list.empty() ? "[]" : "]";
  }

  std::string& out_;
  std::string& columns_;
  const PlanData& data_;
  const Graph& graph_;
  const Plan& plan_;
  const ReportOptions& options_;
};

}  // namespace

PageData page_data(const ReportInput& input) {
  PageData result;
  std::string& out = result.json;
  ObjectWriter object(out);
  object.key("plan");
  if (input.graph != nullptr) {
    const PlanData data = plan_data(*input.graph, *input.plan, input.options);
    PlanWriter(out, result.columns, data, input.options).write();
  } else {
    out += "null";
  }
  object.raw("ledger", input.options.ledger_json.empty() ? "null" : ledger_json(input.options.ledger_json));
  object.raw("timeline", input.options.timeline_json.empty() ? "null" : timeline_json(input.options.timeline_json));
  object.close();
  return result;
}

}  // namespace stowage::report
