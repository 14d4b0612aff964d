// Reads a graph: one pass over the text, then validate() for what holds between ids. Positions in the key tables below
// are the cases of the switches; the required keys come first. O(size of the text).
#include <array>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "io/json_reader.h"
#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage {
namespace {

using io::JsonReader;
using io::Where;
using Value = JsonReader::Value;

class GraphReader {
 public:
  explicit GraphReader(std::string_view text) : json_(text) {}

  Graph run() {
    constexpr std::array<std::string_view, 7> keys = {"format", "version", "align", "buffers", "ops", "name", "meta"};
    const auto seen = json_.read_object(json_.root(), {}, keys, [&](std::size_t key, Value value) {
      const Where where = Where{}.in_field(keys[key]);
      switch (key) {
        case 0: JsonReader::expect_format(value, where, "stowage-graph"); break;
        case 1: JsonReader::expect_version_1(value, where); break;
        case 2: graph_.align = JsonReader::read_int(value, where, 1, kMaxExact); break;
        case 3: json_.read_list(value, where, [&](std::int64_t id, Value entry) { read_buffer(entry, id); }); break;
        case 4: json_.read_list(value, where, [&](std::int64_t id, Value entry) { read_op(entry, id); }); break;
        case 5: graph_.name = JsonReader::read_string(value, where); break;
        default: graph_.meta = JsonReader::read_meta(value, where); break;
      }
    });
    JsonReader::require_first(5, seen, {}, keys);
    json_.finish();
    return std::move(graph_);
  }

 private:
  void read_buffer(Value entry, std::int64_t id) {
    constexpr std::array<std::string_view, 7> keys = {"bytes",    "kind",   "name", "resident",
                                                      "returned", "leaves", "meta"};
    Buffer& buffer = graph_.buffers.emplace_back();
    const Where item{"buffer", id, &buffer.name};
    const auto seen =
        json_.read_object(JsonReader::to_object(entry, item), item, keys, [&](std::size_t key, Value value) {
          const Where where = item.in_field(keys[key]);
          switch (key) {
            case 0: buffer.bytes = JsonReader::read_int(value, where, 0, kMaxExact); break;
            case 1: buffer.kind = read_kind(value, where); break;
            case 2: buffer.name = JsonReader::read_string(value, where); break;
            case 3: buffer.resident = JsonReader::read_bool(value, where); break;
            case 4: buffer.returned = JsonReader::read_bool(value, where); break;
            case 5: buffer.leaves = JsonReader::read_bool(value, where); break;
            default: buffer.meta = JsonReader::read_meta(value, where); break;
          }
        });
    JsonReader::require_first(2, seen, item, keys);
  }

  static BufferKind read_kind(Value value, const Where& where) {
    const std::string name = JsonReader::read_string(value, where);
    for (std::size_t kind = 0; kind < kBufferKindNames.size(); ++kind) {
      if (kBufferKindNames[kind] == name) return static_cast<BufferKind>(kind);
    }
    where.fail(concat("unknown kind ", quote(name)));
  }

  void read_op(Value entry, std::int64_t id) {
    constexpr std::array<std::string_view, 13> keys = {"name",     "target", "reads",   "writes", "creates",
                                                       "cost_ns",  "ticks",  "scratch", "born",   "traits",
                                                       "takeover", "after",  "meta"};
    Op& op = graph_.ops.emplace_back();
    const Where item{"op", id, &op.name};
    bool born = false;
    json_.read_object(JsonReader::to_object(entry, item), item, keys, [&](std::size_t key, Value value) {
      const Where where = item.in_field(keys[key]);
      switch (key) {
        case 0: op.name = JsonReader::read_string(value, where); break;
        case 1: op.target = JsonReader::read_string(value, where); break;
        case 2: read_ids(value, where, op.reads); break;
        case 3: read_ids(value, where, op.writes); break;
        case 4: read_ids(value, where, op.creates); break;
        case 5: op.cost_ns = JsonReader::read_int(value, where, 0, kMaxExact); break;
        case 6: op.ticks = JsonReader::read_int32(value, where, 1); break;
        case 7: read_scratch(value, where, op); break;
        case 8:
          read_born(value, where, op);
          born = true;
          break;
        case 9: read_traits(value, where, op); break;
        case 10: read_reuse_pair(value, where, op); break;
        case 11: read_ids(value, where, op.after); break;
        default: op.meta = JsonReader::read_meta(value, where); break;
      }
    });
    // validate() takes an empty list for an absent one.
    if (born && op.born.size() != op.creates.size()) {
      item.in_field("born").fail(
          concat("has ", op.born.size(), " entries for ", op.creates.size(), " created buffers"));
    }
  }

  // Whether an id is in range is for validate() to say, once the number of buffers is known.
  template <class Ids>
  void read_ids(Value value, const Where& where, Ids& ids) {
    json_.read_list(value, where, [&](std::int64_t index, Value entry) {
      ids.emplace_back(JsonReader::read_int32(entry, where.at(index)));
    });
  }

  void read_scratch(Value value, const Where& where, Op& op) {
    constexpr std::array<std::string_view, 3> keys = {"bytes", "from", "to"};
    json_.read_list(value, where, [&](std::int64_t index, Value entry) {
      const Where item = where.at(index);
      Scratch& scratch = op.scratch.emplace_back();
      const auto seen =
          json_.read_object(JsonReader::to_object(entry, item), item, keys, [&](std::size_t key, Value part) {
            switch (key) {
              case 0: scratch.bytes = JsonReader::read_int(part, item.in_part(keys[key]), 0, kMaxExact); break;
              case 1: scratch.from = JsonReader::read_int32(part, item.in_part(keys[key])); break;
              default: scratch.to = JsonReader::read_int32(part, item.in_part(keys[key])); break;
            }
          });
      JsonReader::require_first(3, seen, item, keys);
    });
  }

  void read_born(Value value, const Where& where, Op& op) {
    json_.read_list(value, where, [&](std::int64_t index, Value entry) {
      op.born.push_back(JsonReader::read_int32(entry, where.at(index)));
    });
  }

  void read_traits(Value value, const Where& where, Op& op) {
    json_.read_list(value, where, [&](std::int64_t index, Value entry) {
      const std::string trait = JsonReader::read_string(entry, where.at(index));
      if (trait != "rng" && trait != "effect" && trait != "once")
        where.at(index).fail(concat("unknown trait ", quote(trait)));
      bool& flag = trait == "rng" ? op.rng : trait == "effect" ? op.effect : op.once;
      if (flag) where.at(index).fail(concat(quote(trait), " is in the list twice"));
      flag = true;
    });
  }

  void read_reuse_pair(Value value, const Where& where, Op& op) {
    json_.read_list(value, where, [&](std::int64_t index, Value entry) {
      std::array<BufferId, 2> pair;
      std::size_t count = 0;
      json_.read_list(entry, where.at(index), [&](std::int64_t, Value id) {
        if (count == pair.size()) where.at(index).fail("must be a pair of buffer ids");
        pair[count++] = BufferId(JsonReader::read_int32(id, where.at(index)));
      });
      if (count != pair.size()) where.at(index).fail("must be a pair of buffer ids");
      op.takeover.push_back({pair[0], pair[1]});
    });
  }

  JsonReader json_;
  Graph graph_;
};

}  // namespace

Graph parse_graph(std::string_view json, const std::string& name) {
  try {
    Graph graph = GraphReader(json).run();
    validate(graph);
    graph.sha256 = sha256_hex(json);
    return graph;
  } catch (const io::FormatError& error) {
    throw InvalidGraph(concat(name, ": ", error.what()));
  } catch (const InvalidGraph& error) {
    throw InvalidGraph(concat(name, ": ", error.what()));
  }
}

}  // namespace stowage
