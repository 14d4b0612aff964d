// An explanation as one screen of text.
#include <algorithm>
#include <cstdio>
#include <map>

#include "explain/advice.h"

namespace stowage {
namespace {

using explained::rounded_bytes;
using explained::short_line;

constexpr std::size_t kHolders = 8;  // rows shown
constexpr std::size_t kAdvice = 5;

std::string padded_left(std::string text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}
std::string padded_right(std::string text, std::size_t width) {
  if (text.size() > width) text = text.substr(0, width - 1) + "~";
  text.resize(width, ' ');
  return text;
}

std::string milliseconds(std::int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%.2f ms", static_cast<double>(ns) / 1e6);
  return text;
}

std::string factor(std::int64_t ns, std::int64_t of) {
  if (of == 0) return "-";
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(ns) / static_cast<double>(of));
  return text;
}

std::string percent(double part) {
  char text[40];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * part);
  return text;
}

// Breaks at blanks; lines after the first are indented.
std::string wrapped(const std::string& text, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t column = indent;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::size_t length = end - at;
    if (column > indent && column + 1 + length > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(at, length);
    column += length;
    at = end + 1;
  }
  return out;
}

std::string headline(const Graph& graph, const Explanation& e) {
  const PlanResult& r = e.result;
  std::string out = graph.name + ": " + std::to_string(graph.ops.size()) + " ops, " +
                    std::to_string(graph.buffers.size()) + " buffers\n";
  if (!r.plan) {
    out += "No plan fits the budget; the smallest budget met is " + rounded_bytes(r.smallest_bytes) +
           ", and no plan can need less than " + rounded_bytes(r.budget_bound_bytes) + ".\n";
    return out;
  }
  out += "residents " + rounded_bytes(r.resident_bytes) + " + arena " + rounded_bytes(r.plan->arena_bytes) + " = " +
         rounded_bytes(r.resident_bytes + r.plan->arena_bytes) + "; in program order the arena would need " +
         rounded_bytes(r.program_peak_bytes) + "\n";
  if (r.recomputed_ops > 0 || r.swapped_bytes > 0) {
    out += "to fit, " + std::to_string(r.recomputed_ops) + " ops run again and " + rounded_bytes(r.swapped_bytes) +
           " wait on the host: step " + milliseconds(r.step_ns) + ", " + factor(r.step_ns, r.program_step_ns) +
           " of the step without a limit\n";
  } else if (r.peak_bytes <= r.lower_bound_bytes) {
    out += "optimal: no order of these ops, without running any again, has a smaller peak\n";
  } else {
    out += "no order can have a peak below " + rounded_bytes(r.lower_bound_bytes) + ": at most " + percent(r.gap) +
           " could be gained\n";
  }
  return out;
}

std::string bar(std::int64_t bytes, std::int64_t of) {
  constexpr std::int64_t kFull = 30;
  return std::string(of == 0 ? 0 : static_cast<std::size_t>((bytes * kFull + of / 2) / of), '#');
}

void kind_line(std::string& out, const std::string& name, std::int64_t resident, std::int64_t peak,
               std::int64_t whole) {
  if (resident == 0 && peak == 0) return;
  out += "  " + padded_right(name, 17) + padded_left(resident ? rounded_bytes(resident) : "", 12) +
         padded_left(peak ? rounded_bytes(peak) : "", 14) + "  " + bar(resident + peak, whole) + "\n";
}

std::string where_bytes_go(const Explanation& e) {
  std::string out = "\nWhere the bytes go     residents    at the peak\n";
  const std::int64_t whole = e.result.resident_bytes + e.peak.bytes;
  for (std::size_t k = 0; k < kBufferKindNames.size(); ++k) {
    std::string name(kBufferKindNames[k]);
    std::replace(name.begin(), name.end(), '_', ' ');
    kind_line(out, name, e.resident_of_kind[k], e.peak.of_kind[k], whole);
  }
  kind_line(out, "scratch of ops", 0, e.peak.scratch_bytes, whole);
  const std::int64_t holes = e.result.plan->arena_bytes - e.peak.bytes;
  if (holes > whole / 1000) kind_line(out, "holes", 0, holes, whole);
  return out;
}

std::string op_and_line(const Graph& graph, OpId id, const char* none) {
  if (!id.valid()) return none;
  const std::string line = short_line(graph.op(id));
  const std::string& target = graph.op(id).target;
  return (target.starts_with("aten::") ? target.substr(6) : target) + (line.empty() ? "" : " " + line);
}

// Buffers of one kind that the same kernels make and need last, such as those of repeated layers, are one row.
struct Row {
  std::int64_t bytes = 0;
  std::size_t buffers = 0;
  std::string kind, name, maker, last_user;  // name: of the largest
};

std::vector<Row> rows(const Graph& graph, const PeakMoment& peak) {
  std::vector<Row> rows;
  std::map<std::array<std::string, 3>, std::size_t> row_of;
  for (const PeakHolder& h : peak.holders) {  // largest first
    const bool scratch = !h.buffer.valid();
    Row row{h.bytes,
            1,
            scratch ? "scratch" : std::string(kBufferKindNames[static_cast<std::size_t>(graph.buffer(h.buffer).kind)]),
            scratch ? "" : graph.buffer(h.buffer).name,
            op_and_line(graph, h.maker, "a copy from the host"),
            op_and_line(graph, h.last_user, "the end")};
    const auto [at, added] = row_of.try_emplace({row.kind, row.maker, row.last_user}, rows.size());
    if (added) {
      rows.push_back(std::move(row));
    } else {
      rows[at->second].bytes += row.bytes;
      ++rows[at->second].buffers;
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.bytes > b.bytes; });
  return rows;
}

std::string holders(const Graph& graph, const Explanation& e, std::size_t width) {
  const PeakMoment& peak = e.peak;
  std::string out = "\nWhat holds the peak: step " + std::to_string(peak.step) + " of " +
                    std::to_string(e.result.plan->steps.size()) +
                    (peak.op.valid() ? ", " + op_and_line(graph, peak.op, "") : "") + "\n";
  const std::size_t column = (width - 12 - 2 - 12 - 2 * 2) / 3;
  out += padded_right("", 12) + "  " + padded_right("kind", 12) + padded_right("buffers", column) + "  " +
         padded_right("made by", column) + "  needed until\n";
  std::int64_t rest = 0;
  std::size_t more = 0;
  const std::vector<Row> all = rows(graph, peak);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Row& row = all[i];
    if (i >= kHolders) {
      rest += row.bytes, more += row.buffers;
      continue;
    }
    const std::string name = row.buffers == 1 ? row.name : std::to_string(row.buffers) + " as " + row.name;
    out += padded_left(rounded_bytes(row.bytes), 12) + "  " + padded_right(row.kind, 12) + padded_right(name, column) +
           "  " + padded_right(row.maker, column) + "  " + padded_right(row.last_user, column);
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  if (more > 0) out += padded_left(rounded_bytes(rest), 12) + "  in " + std::to_string(more) + " more\n";
  return out;
}

std::string price_table(const Explanation& e) {
  std::string out =
      "\nWhat a budget costs          arena     step time    x free   at least x    run again    to the host\n";
  for (const Price& p : e.prices) {
    const PlanResult& r = p.result;
    out += "  " + padded_left(rounded_bytes(p.budget_bytes), 14);
    if (!r.plan) {
      out += r.outcome == Outcome::kUnknown && r.smallest_bytes == 0
                 ? "  stopped by the time limit\n"
                 : "  no plan; the smallest budget met is " + rounded_bytes(r.smallest_bytes) + "\n";
      continue;
    }
    out += padded_left(rounded_bytes(r.plan->arena_bytes), 18) + padded_left(milliseconds(r.step_ns), 14) +
           padded_left(factor(r.step_ns, r.program_step_ns), 10) +
           padded_left(factor(r.step_bound_ns.value_or(r.program_step_ns), r.program_step_ns), 13) +
           padded_left(std::to_string(r.recomputed_ops) + " ops", 13) +
           padded_left(rounded_bytes(r.swapped_bytes), 15) + "\n";
  }
  if (e.prices_left_out > 0)
    out += "  " + std::to_string(e.prices_left_out) + " smaller budget" + (e.prices_left_out == 1 ? "" : "s") +
           " left out: planning them takes longer than an explanation may. `stowage plan --budget` plans any.\n";
  return out;
}

}  // namespace

std::string to_text(const Graph& graph, const Explanation& explanation, int width) {
  const auto columns = static_cast<std::size_t>(std::max(width, 60));
  std::string out = headline(graph, explanation);
  if (explanation.result.plan) out += where_bytes_go(explanation);
  if (!explanation.peak.holders.empty()) out += holders(graph, explanation, columns);
  if (!explanation.prices.empty() || explanation.prices_left_out > 0) out += price_table(explanation);
  if (!explanation.advice.empty()) out += "\nWhat to change\n";
  for (std::size_t i = 0; i < std::min(kAdvice, explanation.advice.size()); ++i)
    out += "  - " + wrapped(explanation.advice[i].text, columns, 4) + "\n";
  return out;
}

}  // namespace stowage
