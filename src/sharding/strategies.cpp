#include "sharding/strategies.h"

#include <algorithm>
#include <set>

#include "sharding/redistribution.h"

namespace stowage {
namespace {

std::int64_t items(const UnitView::Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

bool changes_no_number(const UnitView& unit) {
  static const std::set<std::string, std::less<>> names = {
      "view",  "_unsafe_view", "reshape", "squeeze",    "unsqueeze", "_reshape_alias",   "permute",   "transpose",
      "t",     "expand",       "select",  "unbind",     "split",     "split_with_sizes", "chunk",     "narrow",
      "slice", "detach",       "alias",   "lift_fresh", "empty",     "new_empty",        "empty_like"};
  return names.contains(unit.name);
}

class Composer {
 public:
  Composer(const TensorProgram& program, const Unit& unit, const OpRule& rule, const Mesh& mesh)
      : program_(program),
        unit_(unit),
        view_(program, unit),
        rule_(rule),
        mesh_(mesh),
        flops_(flops_of(program, unit)),
        free_(changes_no_number(view_)) {}

  std::vector<Strategy> run() {
    std::vector<std::size_t> chosen(mesh_.axes.size(), 0);
    do add(chosen);
    while (next(chosen));
    return std::move(found_);
  }

 private:
  // Counts through all rows for all axes, axis 0 slowest.
  bool next(std::vector<std::size_t>& chosen) const {
    for (std::size_t a = chosen.size(); a-- > 0;) {
      if (++chosen[a] < rule_.rows.size()) return true;
      chosen[a] = 0;
    }
    return false;
  }

  void add(const std::vector<std::size_t>& chosen) {
    Strategy strategy{std::vector<Code>(unit_.slots.size(), 0), std::vector<Code>(unit_.outputs.size(), 0)};
    double share = 1, recipe_ns = 0;
    std::int64_t gathered = rule_.recipe_gathered;
    for (std::size_t a = 0; a < chosen.size(); ++a) {
      const AxisRow& row = rule_.rows[chosen[a]];
      for (std::size_t s = 0; s < row.in.size(); ++s) strategy.in[s] = with_axis(strategy.in[s], a, row.in[s]);
      for (std::size_t o = 0; o < row.out.size(); ++o) strategy.out[o] = with_axis(strategy.out[o], a, row.out[o]);
      share *= share_of(row, a);
      if (rule_.recipe.empty() || static_cast<int>(chosen[a]) < rule_.recipe_from) continue;
      strategy.recipe = true;
      if (rule_.recipe_bytes > 0) recipe_ns += all_reduce_ns(rule_.recipe_bytes, mesh_.axes[a]);
      if (gathered > 0) recipe_ns += all_gather_ns(gathered *= mesh_.axes[a].size, mesh_.axes[a]);
    }
    if (!valid(strategy)) return;
    strategy.compute_ns = compute_ns(strategy, share) + recipe_ns;
    found_.push_back(std::move(strategy));
  }

  // Of the arithmetic, on the fullest device of this axis.
  double share_of(const AxisRow& row, std::size_t axis) const {
    const auto part = [&](const UnitView::Shape& shape, AxisCode code) {
      const std::int64_t size = shape[static_cast<std::size_t>(code - 1)], n = mesh_.axes[axis].size;
      return size == 0 ? 1.0 : static_cast<double>((size + n - 1) / n) / static_cast<double>(size);
    };
    for (std::size_t s = 0; s < row.in.size(); ++s)
      if (is_shard(row.in[s])) return part(view_.shape(static_cast<int>(s)), row.in[s]);
    for (std::size_t o = 0; o < row.out.size(); ++o)
      if (is_shard(row.out[o]) && view_.has_output(static_cast<int>(o)))
        return part(view_.out_shape(static_cast<int>(o)), row.out[o]);
    return 1;
  }

  bool cuts_fit(const UnitView::Shape& shape, Code code) const {
    AxisCode partial = kWhole;
    for (std::size_t a = 0; a < mesh_.axes.size(); ++a) {
      const AxisCode part = axis_code(code, a);
      if (part == kUntouched) continue;
      if (part < 0) {
        if (partial != kWhole && partial != part) return false;
        partial = part;
      }
      if (is_shard(part) &&
          (static_cast<std::size_t>(part) > shape.size() || shape[static_cast<std::size_t>(part - 1)] <= 1))
        return false;
    }
    return true;
  }

  // Every device has a part: slices of slices may run out at different places, so all sizes that occur are followed.
  bool all_have_parts(const UnitView::Shape& shape, Code code) const {
    for (std::size_t d = 0; d < shape.size(); ++d) {
      std::set<std::int64_t> sizes = {shape[d]};
      for (std::size_t a = 0; a < mesh_.axes.size(); ++a) {
        if (axis_code(code, a) != shard(static_cast<int>(d))) continue;
        std::set<std::int64_t> cut;
        for (const std::int64_t size : sizes) {
          const std::int64_t n = mesh_.axes[a].size, slice = (size + n - 1) / n;
          if (slice == 0 || slice * (n - 1) >= size) return false;
          cut.insert({slice, size - slice * (n - 1)});
        }
        sizes = std::move(cut);
      }
    }
    return true;
  }

  bool parts_suffice(const Strategy& strategy) const {
    if (!rule_.no_empty) return true;
    for (std::size_t s = 0; s < strategy.in.size(); ++s)
      if (!all_have_parts(view_.shape(static_cast<int>(s)), strategy.in[s])) return false;
    for (std::size_t o = 0; o < strategy.out.size(); ++o)
      if (view_.has_output(static_cast<int>(o)) &&
          !all_have_parts(view_.out_shape(static_cast<int>(o)), strategy.out[o]))
        return false;
    return true;
  }

  bool valid(const Strategy& strategy) const {
    if (!parts_suffice(strategy)) return false;
    for (std::size_t s = 0; s < strategy.in.size(); ++s)
      if (!cuts_fit(view_.shape(static_cast<int>(s)), strategy.in[s])) return false;
    for (std::size_t o = 0; o < strategy.out.size(); ++o)
      if (view_.has_output(static_cast<int>(o)) && !cuts_fit(view_.out_shape(static_cast<int>(o)), strategy.out[o]))
        return false;
    return std::all_of(rule_.even.begin(), rule_.even.end(), [&](const EvenDim& even) {
      const auto shape = even.output ? view_.out_shape(even.index) : view_.shape(even.index);
      const Code code = even.output ? strategy.out[static_cast<std::size_t>(even.index)]
                                    : strategy.in[static_cast<std::size_t>(even.index)];
      return shape[static_cast<std::size_t>(even.dim)] % parts_of(code, even.dim, mesh_) == 0;
    });
  }

  double compute_ns(const Strategy& strategy, double share) const {
    if (free_) return 0;
    double bytes = 0;
    for (std::size_t s = 0; s < strategy.in.size(); ++s)
      if (axis_code(strategy.in[s], 0) != kUntouched)
        bytes +=
            static_cast<double>(largest_bytes(program_.tensors[unit_.slots[s].tensor.index()], strategy.in[s], mesh_)) *
            (unit_.slots[s].written ? 2 : 1);
    for (std::size_t o = 0; o < strategy.out.size(); ++o)
      if (unit_.outputs[o].valid())
        bytes += static_cast<double>(largest_bytes(program_.tensors[unit_.outputs[o].index()], strategy.out[o], mesh_));
    return std::max({mesh_.kernel_ns, flops_ * share / (mesh_.tflops * 1e3), bytes / mesh_.memory_gbps});
  }

  const TensorProgram& program_;
  const Unit& unit_;
  UnitView view_;
  const OpRule& rule_;
  const Mesh& mesh_;
  double flops_;
  bool free_;
  std::vector<Strategy> found_;
};

}  // namespace

std::vector<Strategy> strategies_of(const TensorProgram& program, const Unit& unit, const OpRule& rule,
                                    const Mesh& mesh) {
  return Composer(program, unit, rule, mesh).run();
}

double flops_of(const TensorProgram& program, const Unit& unit) {
  const UnitView view(program, unit);
  if (view.op().flops > 0) return static_cast<double>(view.op().flops);
  const auto count = [&](std::string_view argument) {
    const int s = view.slot_of(argument);
    return s < 0 ? 0.0 : static_cast<double>(items(view.shape(s)));
  };
  const auto last = [&](std::string_view argument) {
    const int s = view.slot_of(argument);
    return s < 0 || view.shape(s).empty() ? 0.0 : static_cast<double>(view.shape(s).back());
  };
  if (view.name == "mm" || view.name == "bmm") return 2 * count("self") * last("mat2");
  if (view.name == "addmm") return 2 * count("mat1") * last("mat2");
  if (view.name == "baddbmm") return 2 * count("batch1") * last("batch2");
  if (view.name.find("scaled_dot_product") != std::string::npos) {
    const int q = view.slot_of("query"), k = view.slot_of("key");
    if (q < 0 || k < 0 || view.shape(k).size() != 4) return 0;
    const double products = static_cast<double>(items(view.shape(q))) * static_cast<double>(view.shape(k)[2]);
    return products * (view.name.ends_with("backward") ? 10 : 4);
  }
  if (view.name == "convolution" || view.name == "convolution_backward") {
    const int w = view.slot_of("weight"), g = view.slot_of("grad_output");
    if (w < 0 || view.shape(w).empty()) return 0;
    const auto planes = g >= 0 ? view.shape(g) : view.out_shape(0);
    const double inner =
        static_cast<double>(items(view.shape(w))) / static_cast<double>(std::max<std::int64_t>(1, view.shape(w)[0]));
    return 2 * static_cast<double>(items(planes)) * inner * (g >= 0 ? 2 : 1);
  }
  return 0;
}

}  // namespace stowage
