// Reads a step for sharding: tensors, and ops with the tensors and values that they were called with. One pass, then
// what holds between lists. O(size of the text).
#include <algorithm>
#include <array>
#include <limits>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "io/json_reader.h"
#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage {
namespace {

using io::FormatError;
using io::JsonReader;
using io::Where;
using Value = JsonReader::Value;

constexpr std::array<std::string_view, 8> kKinds = {"parameter", "gradient", "optimizer_state", "module_buffer",
                                                    "input",     "constant", "activation",      "output"};
constexpr std::array<std::string_view, 3> kPhases = {"forward", "backward", "optimizer"};

template <std::size_t N>
std::size_t one_of(const std::array<std::string_view, N>& names, Value value, const Where& where) {
  const std::string text = JsonReader::read_string(value, where);
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == text) return i;
  where.fail(concat("unknown ", where.field, " ", quote(text)));
}

// As schemas name arguments; messages show it as it stands.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 200 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

constexpr std::size_t kMostDimensions = 64;  // as PyTorch's tensors

class ProgramReader {
 public:
  explicit ProgramReader(std::string_view text) : json_(text) {}

  TensorProgram run() {
    constexpr std::array<std::string_view, 6> keys = {"format", "version", "tensors", "ops", "name", "meta"};
    const auto seen = json_.read_object(json_.root(), {}, keys, [&](std::size_t key, Value value) {
      const Where where = Where{}.in_field(keys[key]);
      switch (key) {
        case 0: JsonReader::expect_format(value, where, "stowage-program"); break;
        case 1: JsonReader::expect_version_1(value, where); break;
        case 2: json_.read_list(value, where, [&](std::int64_t id, Value entry) { read_tensor(id, entry); }); break;
        case 3: json_.read_list(value, where, [&](std::int64_t id, Value entry) { read_op(id, entry); }); break;
        case 4: program_.name = JsonReader::read_string(value, where); break;
        default: JsonReader::read_meta(value, where); break;
      }
    });
    JsonReader::require_first(4, seen, {}, keys);
    json_.finish();
    check_ids();
    return std::move(program_);
  }

 private:
  void read_tensor(std::int64_t id, Value value) {
    constexpr std::array<std::string_view, 6> keys = {"shape", "item_bytes", "kind", "name", "of", "alias_of"};
    ProgramTensor& tensor = program_.tensors.emplace_back();
    const Where here{.item = "tensor", .id = id, .name = &tensor.name};
    const auto seen =
        json_.read_object(JsonReader::to_object(value, here), here, keys, [&](std::size_t key, Value member) {
          const Where where = here.in_field(keys[key]);
          switch (key) {
            case 0:
              json_.read_list(member, where, [&](std::int64_t d, Value size) {
                tensor.shape.push_back(JsonReader::read_int(size, where.at(d), 0, kMaxExact));
              });
              break;
            case 1: tensor.item_bytes = JsonReader::read_int(member, where, 0, 64); break;
            case 2: tensor.kind = static_cast<TensorKind>(one_of(kKinds, member, where)); break;
            case 3: tensor.name = JsonReader::read_string(member, where); break;
            case 4: tensor.of = TensorId(JsonReader::read_int32(member, where)); break;
            default: tensor.alias_of = TensorId(JsonReader::read_int32(member, where)); break;
          }
        });
    JsonReader::require_first(3, seen, here, keys);
    if (tensor.shape.size() > kMostDimensions)
      here.in_field("shape").fail(concat("has more than ", kMostDimensions, " dimensions"));
    std::int64_t bytes = std::max<std::int64_t>(tensor.item_bytes, 1);
    // A size of 0 hides no overflow: every part of the product is formed somewhere
    for (const std::int64_t size : tensor.shape) {
      if (size > 0 && bytes > kMaxExact / size) here.in_field("shape").fail("has more than 2^53 bytes");
      bytes *= std::max<std::int64_t>(size, 1);
    }
    total_bytes_ += bytes;
    if (total_bytes_ > kMaxExact) here.in_field("shape").fail("the sum of all tensors' bytes reaches 2^53");
  }

  void read_op(std::int64_t id, Value value) {
    constexpr std::array<std::string_view, 7> keys = {"target", "args",       "outputs", "phase",
                                                      "writes", "attributes", "flops"};
    ProgramOp& op = program_.ops.emplace_back();
    const Where here{.item = "op", .id = id, .name = &op.target};
    const auto seen =
        json_.read_object(JsonReader::to_object(value, here), here, keys, [&](std::size_t key, Value member) {
          const Where where = here.in_field(keys[key]);
          switch (key) {
            case 0: op.target = JsonReader::read_string(member, where); break;
            case 1: read_arguments(member, where, op); break;
            case 2: read_ids(member, where, op.outputs, true); break;
            case 3: op.phase = static_cast<Phase>(one_of(kPhases, member, where)); break;
            case 4: read_ids(member, where, op.writes, false); break;
            case 5: read_attributes(member, where, op); break;
            default: op.flops = JsonReader::read_int(member, where, 0, std::numeric_limits<std::int64_t>::max()); break;
          }
        });
    JsonReader::require_first(3, seen, here, keys);
  }

  // null stands for an output that is not there.
  void read_ids(Value value, const Where& where, std::vector<TensorId>& ids, bool may_miss) {
    json_.read_list(value, where, [&](std::int64_t i, Value entry) {
      bool missing = false;
      if (may_miss && entry.is_null().get(missing) == simdjson::SUCCESS && missing) {
        ids.emplace_back();
      } else {
        ids.emplace_back(JsonReader::read_int32(entry, where.at(i)));
      }
    });
  }

  // {"self": 3, "tensors": [4, 5]}
  void read_arguments(Value value, const Where& where, ProgramOp& op) {
    for (auto member : JsonReader::to_object(value, where)) {
      std::string_view name;
      Value entry;
      if (member.unescaped_key().get(name) != simdjson::SUCCESS || member.value().get(entry) != simdjson::SUCCESS) {
        where.fail("is not valid JSON");
      }
      if (!is_name(name)) where.fail(concat(quote(name), " is no name of an argument"));
      if (std::ranges::find(op.args, name, &TensorArgument::name) != op.args.end())
        where.fail(concat(quote(name), " is there twice"));
      TensorArgument& argument = op.args.emplace_back();
      argument.name = std::string(name);
      simdjson::ondemand::json_type type{};
      if (entry.type().get(type) != simdjson::SUCCESS) where.fail("is not valid JSON");
      argument.is_list = type == simdjson::ondemand::json_type::array;
      if (argument.is_list) {
        read_ids(entry, where.in_part(argument.name), argument.tensors, false);
      } else {
        argument.tensors.emplace_back(JsonReader::read_int32(entry, where.in_part(argument.name)));
      }
    }
  }

  void read_attributes(Value value, const Where& where, ProgramOp& op) {
    for (auto member : JsonReader::to_object(value, where)) {
      std::string_view name;
      Value entry;
      if (member.unescaped_key().get(name) != simdjson::SUCCESS || member.value().get(entry) != simdjson::SUCCESS) {
        where.fail("is not valid JSON");
      }
      if (op.attributes.contains(name)) where.fail(concat(quote(name), " is there twice"));
      read_attribute(std::string(name), entry, where, op);
    }
  }

  // Values of other kinds (null, lists of anything but integers and truth values) decide no placement and are passed
  // over.
  void read_attribute(const std::string& name, Value value, const Where& where, ProgramOp& op) {
    using simdjson::ondemand::json_type;
    json_type type{};
    if (value.type().get(type) != simdjson::SUCCESS) where.fail("is not valid JSON");
    std::int64_t whole = 0;
    if (type == json_type::boolean) {
      op.attributes[name] = JsonReader::read_bool(value, where);
    } else if (type == json_type::string) {
      op.attributes[name] = JsonReader::read_string(value, where);
    } else if (type == json_type::number) {
      if (value.get_int64().get(whole) == simdjson::SUCCESS) {
        op.attributes[name] = whole;
      } else {
        double number = 0;
        if (value.get_double().get(number) != simdjson::SUCCESS) where.fail(concat(quote(name), " must be a number"));
        op.attributes[name] = number;
      }
    } else if (type == json_type::array) {
      std::vector<std::int64_t> list;
      bool all_whole = true;
      json_.read_list(value, where, [&](std::int64_t, Value entry) {
        bool flag = false;
        if (entry.get_int64().get(whole) == simdjson::SUCCESS) {
          list.push_back(whole);
        } else if (entry.get_bool().get(flag) == simdjson::SUCCESS) {
          list.push_back(flag ? 1 : 0);
        } else {
          all_whole = false;
        }
      });
      if (all_whole) op.attributes[name] = std::move(list);
    } else if (type == json_type::object) {
      where.fail(concat(quote(name), " must not be an object"));
    }
  }

  void check_ids() const {
    const std::size_t n = program_.tensors.size();
    const auto check = [&](std::string_view item, std::size_t id, TensorId tensor, std::string_view field) {
      if (tensor.valid() && tensor.index() >= n) {
        throw FormatError(concat(item, " ", id, ": ", field, " names tensor ", tensor.value, ", but there are ", n));
      }
    };
    for (std::size_t t = 0; t < n; ++t) {
      check("tensor", t, program_.tensors[t].of, "of");
      check("tensor", t, program_.tensors[t].alias_of, "alias_of");
      if (program_.tensors[t].alias_of.valid() && program_.tensors[t].alias_of.index() >= t) {
        throw FormatError(concat("tensor ", t, ": alias_of must name an earlier tensor"));
      }
    }
    IdVector<TensorId, char> made(n, 0), used(n, 0);
    for (std::size_t o = 0; o < program_.ops.size(); ++o) {
      const ProgramOp& op = program_.ops[o];
      for (const TensorArgument& argument : op.args) {
        for (const TensorId tensor : argument.tensors) {
          check("op", o, tensor, argument.name);
          used[tensor] = 1;
        }
      }
      for (const TensorId tensor : op.writes) check("op", o, tensor, "writes");
      for (const TensorId tensor : op.outputs) {
        check("op", o, tensor, "outputs");
        if (!tensor.valid()) continue;
        if (made[tensor])
          throw FormatError(concat("op ", o, ": outputs names tensor ", tensor.value, ", which an earlier op made"));
        if (used[tensor])
          throw FormatError(concat("op ", o, ": outputs names tensor ", tensor.value, ", which is used before"));
        made[tensor] = 1;
      }
    }
  }

  JsonReader json_;
  TensorProgram program_;
  std::int64_t total_bytes_ = 0;
};

}  // namespace

TensorProgram parse_program(std::string_view json, const std::string& name) {
  try {
    return ProgramReader(json).run();
  } catch (const FormatError& error) {
    throw Error(concat(name, ": ", error.what()));
  }
}

}  // namespace stowage
