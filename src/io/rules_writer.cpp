// Writes the sharding rules of a program's ops: what a test needs to run each of them on parts.
#include "sharding/code.h"
#include "sharding/rules.h"
#include "stowage/io.h"
#include "stowage/json.h"

namespace stowage {
namespace {

void append_codes(io::ObjectWriter& object, std::string& out, std::string_view name,
                  const std::vector<AxisCode>& codes) {
  object.key(name);
  out += '[';
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (i > 0) out += ',';
    io::append_string(
        out, codes[i] == kUntouched ? std::string("any") : to_text(to_placement(with_axis(0, 0, codes[i]), 1)));
  }
  out += ']';
}

void append_rule(std::string& out, const OpRule& rule) {
  io::ObjectWriter object(out);
  object.key("rows");
  for (std::size_t r = 0; r < rule.rows.size(); ++r) {
    out += r == 0 ? '[' : ',';
    io::ObjectWriter row(out);
    append_codes(row, out, "inputs", rule.rows[r].in);
    append_codes(row, out, "outputs", rule.rows[r].out);
    row.field("recipe", static_cast<int>(r) >= rule.recipe_from ? rule.recipe : std::string());
    row.close();
  }
  out += ']';
  object.key("even");
  out += '[';
  for (std::size_t e = 0; e < rule.even.size(); ++e) {
    if (e > 0) out += ',';
    io::ObjectWriter even(out);
    even.field("output", rule.even[e].output);
    even.field("index", rule.even[e].index);
    even.field("dim", rule.even[e].dim);
    even.close();
  }
  out += ']';
  object.field("follows", rule.follows);
  object.field("no_empty", rule.no_empty);
  object.field("why", rule.why);
  object.close();
}

}  // namespace

std::string sharding_rules_json(const TensorProgram& program) {
  std::string out = "[";
  for (const Unit& unit : make_units(program)) {
    if (out.size() > 1) out += ',';
    append_rule(out, rule_of(UnitView(program, unit)));
  }
  return out + "]";
}

}  // namespace stowage
