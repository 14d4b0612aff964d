// Ops that move no numbers about, or only along some dimensions: a cut of a dimension that they leave alone passes.
//
//   view [B, S, H] -> [B*S, H]      S0 -> S0 (B in equal parts)   S2 -> S1       of dimensions that are joined or split, the first
//   view [B*S, h*d] -> [B, S, h, d] S0 -> S0                      S1 -> S2       can be cut, in equal parts on both sides
#include <algorithm>
#include <set>

#include "sharding/rules.h"

namespace stowage {
namespace {

using Shape = UnitView::Shape;

void add_row(const UnitView& unit, int in_dim, int out_dim, OpRule& rule) {
  AxisRow row = whole_row(unit);
  row.in[0] = shard(in_dim);
  for (int o = 0; o < unit.outputs(); ++o) row.out[static_cast<std::size_t>(o)] = shard(out_dim);
  rule.rows.push_back(std::move(row));
}

void pass_partial(const UnitView& unit, OpRule& rule) {
  AxisRow row = whole_row(unit);
  row.in[0] = kPartSum;
  for (AxisCode& code : row.out) code = kPartSum;
  rule.rows.push_back(std::move(row));
}

// Walks both shapes in groups of dimensions with equal products.
bool reshape(const UnitView& unit, OpRule& rule) {
  const Shape in = unit.shape(0), out = unit.out_shape(0);
  bool covers = true;
  std::size_t i = 0, o = 0;
  const auto skip_ones = [](const Shape& shape, std::size_t& at) {
    while (at < shape.size() && shape[at] == 1) ++at;
  };
  while (true) {
    skip_ones(in, i), skip_ones(out, o);
    if (i >= in.size() || o >= out.size()) break;
    const std::size_t i0 = i, o0 = o;
    std::int64_t p = in[i++], q = out[o++];
    if (p == 0 || q == 0) return false;
    while (p != q) {
      std::int64_t& smaller = p < q ? p : q;
      const Shape& shape = p < q ? in : out;
      std::size_t& at = p < q ? i : o;
      if (at >= shape.size()) return false;
      smaller *= shape[at++];
    }
    add_row(unit, static_cast<int>(i0), static_cast<int>(o0), rule);
    const bool alone = i == i0 + 1 && o == o0 + 1;
    if (!alone) {
      rule.even.push_back({false, 0, static_cast<int>(i0)});
      rule.even.push_back({true, 0, static_cast<int>(o0)});
      for (std::size_t d = i0 + 1; d < i; ++d) covers = covers && in[d] == 1;  // a cut of an inner one has no row
    }
  }
  rule.follows = covers;
  return true;
}

std::vector<int> permutation(const UnitView& unit) {
  const std::size_t rank = unit.shape(0).size();
  std::vector<int> source(rank);
  for (std::size_t d = 0; d < rank; ++d) source[d] = static_cast<int>(d);
  if (unit.name == "permute") {
    const auto dims = unit.integers("dims");
    if (dims.size() != rank) return {};
    for (std::size_t d = 0; d < rank; ++d) source[d] = wrapped(dims[d], rank);
  } else if (rank >= 2) {
    const bool plain = unit.name == "t";
    const int a = plain ? 0 : wrapped(unit.integer("dim0", 0), rank),
              b = plain ? 1 : wrapped(unit.integer("dim1", 1), rank);
    std::swap(source[static_cast<std::size_t>(a)], source[static_cast<std::size_t>(b)]);
  }
  return source;
}

bool permute(const UnitView& unit, OpRule& rule) {
  const std::vector<int> source = permutation(unit);
  if (source.size() != unit.shape(0).size()) return false;
  for (std::size_t d = 0; d < source.size(); ++d)
    if (unit.out_shape(0)[d] > 1) add_row(unit, source[d], static_cast<int>(d), rule);
  rule.follows = true;
  return true;
}

bool expand(const UnitView& unit, OpRule& rule) {
  const Shape in = unit.shape(0), out = unit.out_shape(0);
  bool same = true;
  for (int d = 0; d < static_cast<int>(out.size()); ++d) {
    const int own = d - static_cast<int>(out.size()) + static_cast<int>(in.size());
    if (out[static_cast<std::size_t>(d)] <= 1) continue;
    if (own >= 0 && in[static_cast<std::size_t>(own)] == out[static_cast<std::size_t>(d)]) {
      add_row(unit, own, d, rule);
    } else {  // every part of what is repeated is the same
      AxisRow row = whole_row(unit);
      row.out[0] = shard(d);
      rule.rows.push_back(std::move(row));
      same = false;
    }
  }
  rule.follows = same;
  return true;
}

// Dimensions that none of these touches pass as they are; `shift` is what the others move by in the result.
bool along(const UnitView& unit, int dim, int shift, OpRule& rule) {
  const auto rank = static_cast<int>(unit.shape(0).size());
  bool all = true;
  for (int d = 0; d < rank; ++d) {
    if (unit.shape(0)[static_cast<std::size_t>(d)] <= 1) continue;
    if (d == dim && shift <= 0) {
      all = false;
      continue;
    }
    add_row(unit, d, d >= dim ? d + shift : d, rule);
  }
  rule.follows = all && unit.outputs() == 1;
  return true;
}

bool joined(const UnitView& unit, OpRule& rule) {  // cat, stack
  const bool fresh = unit.name == "stack";
  const std::size_t rank = unit.out_shape(0).size();
  const int dim = wrapped(unit.integer("dim", 0), rank);
  for (int d = 0; d < static_cast<int>(rank); ++d) {
    if (d == dim || unit.out_shape(0)[static_cast<std::size_t>(d)] <= 1) continue;
    AxisRow row = whole_row(unit);
    bool fits = true;
    for (int s = 0; s < unit.slots(); ++s) {
      const int own = fresh && d > dim ? d - 1 : d;
      fits = fits && static_cast<int>(unit.shape(s).size()) > own;
      row.in[static_cast<std::size_t>(s)] = shard(own);
    }
    row.out[0] = shard(d);
    if (fits) rule.rows.push_back(std::move(row));
  }
  return true;
}

bool untouched_dims(const UnitView& unit, const std::vector<int>& touched, OpRule& rule) {
  for (int d = 0; d < static_cast<int>(unit.shape(0).size()); ++d) {
    const bool is_touched = std::find(touched.begin(), touched.end(), d) != touched.end();
    if (!is_touched && unit.shape(0)[static_cast<std::size_t>(d)] > 1) add_row(unit, d, d, rule);
  }
  return true;
}

// Pairs of what is added before and behind, the last dimension first. What is added at one end and cut off at the other
// (F.pad(x, (1, -1))) moves all rows, and leaves the size as it is.
std::vector<int> padded(const UnitView& unit) {
  const std::size_t rank = unit.shape(0).size();
  const auto pad = unit.integers("pad");
  std::vector<int> touched;
  for (std::size_t i = 0; i < pad.size(); ++i)
    if (pad[i] != 0 && i / 2 < rank) touched.push_back(static_cast<int>(rank - 1 - i / 2));
  return touched;
}

// Pads, flips, rolls, triangles: sizes may change along what is touched.
bool partly(const UnitView& unit, OpRule& rule) {
  const std::size_t rank = unit.shape(0).size();
  std::vector<int> touched;
  if (unit.name == "tril" || unit.name == "triu") {
    touched = {static_cast<int>(rank) - 2, static_cast<int>(rank) - 1};
  } else if (unit.name == "constant_pad_nd") {
    if (unit.integers("pad").empty()) return false;
    touched = padded(unit);
  } else if (unit.name == "repeat") {
    const Shape out = unit.out_shape(0);
    const std::size_t fresh = out.size() - rank;
    if (fresh != 0) return false;
    for (std::size_t d = 0; d < rank; ++d)
      if (out[d] != unit.shape(0)[d]) touched.push_back(static_cast<int>(d));
  } else {
    const auto dims = unit.integers("dims");
    if (dims.empty()) return false;
    for (const std::int64_t d : dims) touched.push_back(wrapped(d, rank));
  }
  return untouched_dims(unit, touched, rule);
}

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool dispatch(const UnitView& unit, OpRule& rule) {
  const std::size_t rank = unit.shape(0).size();
  const std::string& name = unit.name;
  if (is_one_of(name,
                {"view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "_reshape_alias", "flatten", "unflatten"}))
    return reshape(unit, rule);
  if (is_one_of(name, {"permute", "transpose", "t"})) return permute(unit, rule);
  if (name == "expand") return expand(unit, rule);
  if (is_one_of(name, {"select", "unbind"})) return along(unit, wrapped(unit.integer("dim", 0), rank), -1, rule);
  if (is_one_of(name, {"split", "split_with_sizes", "chunk", "narrow", "slice", "slice_backward", "slice_scatter"})) {
    if (name == "slice_scatter") return add_common_rows(unit, wrapped(unit.integer("dim", 0), rank), rule), true;
    if (name == "slice" && unit.out_shape(0) == unit.shape(0)) return reshape(unit, rule);
    return along(unit, wrapped(unit.integer("dim", 0), rank), 0, rule);
  }
  if (name == "select_backward") return along(unit, wrapped(unit.integer("dim", 0), rank + 1), 1, rule);
  return partly(unit, rule);
}

}  // namespace

bool view_rule(const UnitView& unit, OpRule& rule) {
  static const std::set<std::string, std::less<>> names = {"view",
                                                           "_unsafe_view",
                                                           "reshape",
                                                           "squeeze",
                                                           "unsqueeze",
                                                           "_reshape_alias",
                                                           "flatten",
                                                           "unflatten",
                                                           "permute",
                                                           "transpose",
                                                           "t",
                                                           "expand",
                                                           "select",
                                                           "unbind",
                                                           "split",
                                                           "split_with_sizes",
                                                           "chunk",
                                                           "narrow",
                                                           "slice",
                                                           "slice_backward",
                                                           "slice_scatter",
                                                           "select_backward",
                                                           "tril",
                                                           "triu",
                                                           "constant_pad_nd",
                                                           "repeat",
                                                           "flip",
                                                           "roll"};
  if (unit.name == "cat" || unit.name == "stack") return joined(unit, rule);
  if (!names.contains(unit.name) || unit.slots() == 0) return false;
  if (!dispatch(unit, rule)) {  // a shape that the walk cannot follow
    rule.rows.resize(1);
    rule.even.clear();
    rule.follows = false;
    return false;
  }
  rule.linear = rule.follows;
  if (unit.slots() == 1 && unit.name != "constant_pad_nd") pass_partial(unit, rule);
  return true;
}

}  // namespace stowage
