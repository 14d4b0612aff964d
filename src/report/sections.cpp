#include "report/sections.h"

#include <array>

#include "base/limits.h"
#include "io/json_reader.h"
#include "stowage/error.h"
#include "stowage/json.h"

namespace stowage::report {
namespace {

using io::JsonReader;
using io::ObjectWriter;
using io::Where;

enum class Type { kText, kInt };

struct Field {
  std::string_view name;
  Type type;
};

// Reads a list of flat objects and writes it again, each field as what it must be.
template <std::size_t N>
void copy_rows(JsonReader& json, JsonReader::Value list, std::string_view item, const std::array<Field, N>& fields,
               std::string& out) {
  std::array<std::string_view, N> keys;
  for (std::size_t i = 0; i < N; ++i) keys[i] = fields[i].name;
  out += '[';
  json.read_list(list, Where{}.in_field(item), [&](std::int64_t row, JsonReader::Value value) {
    if (row > 0) out += ',';
    const Where where{item, row};
    ObjectWriter object(out);
    const auto seen = json.read_object(JsonReader::to_object(value, where), where, keys,
                                       [&](std::size_t key, JsonReader::Value field) {
                                         const Where at = where.in_field(keys[key]);
                                         if (fields[key].type == Type::kText) {
                                           object.field(keys[key], JsonReader::read_string(field, at));
                                         } else {
                                           object.field(keys[key], JsonReader::read_int(field, at, 0, kMaxExact));
                                         }
                                       });
    JsonReader::require_first(N, seen, where, keys);
    object.close();
  });
  out += ']';
}

constexpr std::array kLedgerFields = {Field{"tensor", Type::kText},         Field{"bytes", Type::kInt},
                                      Field{"placement", Type::kText},      Field{"local_bytes", Type::kInt},
                                      Field{"redundant_bytes", Type::kInt}, Field{"why", Type::kText}};
constexpr std::array kEventFields = {Field{"t_ns", Type::kInt}, Field{"event", Type::kText}, Field{"bytes", Type::kInt},
                                     Field{"op", Type::kText}};
constexpr std::array kHolderFields = {Field{"line", Type::kText}, Field{"source", Type::kText},
                                      Field{"phase", Type::kText}, Field{"bytes", Type::kInt}};
constexpr std::array kLiveFields = {Field{"t_ns", Type::kInt}, Field{"bytes", Type::kInt}};

}  // namespace

std::string ledger_json(const std::string& text) try {
  static constexpr std::array<std::string_view, 2> keys = {"rows", "devices"};
  std::string out;
  JsonReader json(text);
  ObjectWriter object(out);
  const auto seen = json.read_object(json.root(), Where{}, keys, [&](std::size_t key, JsonReader::Value value) {
    if (key == 0) {
      object.key("rows");
      copy_rows(json, value, "row", kLedgerFields, out);
    } else {
      object.field("devices", JsonReader::read_int(value, Where{}.in_field("devices"), 1, kMaxExact));
    }
  });
  JsonReader::require_first(1, seen, Where{}, keys);
  json.finish();
  object.close();
  return out;
} catch (const io::FormatError& error) {
  throw Error(std::string("ledger: ") + error.what());
}

std::string timeline_json(const std::string& text) try {
  static constexpr std::array<std::string_view, 4> keys = {"events", "live", "limit_bytes", "holders"};
  std::string out;
  JsonReader json(text);
  ObjectWriter object(out);
  const auto seen = json.read_object(json.root(), Where{}, keys, [&](std::size_t key, JsonReader::Value value) {
    if (key != 2) object.key(keys[key]);
    if (key == 0) copy_rows(json, value, "event", kEventFields, out);
    if (key == 1) copy_rows(json, value, "live", kLiveFields, out);
    if (key == 2)
      object.field("limit_bytes", JsonReader::read_int(value, Where{}.in_field("limit_bytes"), 0, kMaxExact));
    if (key == 3) copy_rows(json, value, "holder", kHolderFields, out);
  });
  JsonReader::require_first(1, seen, Where{}, keys);
  json.finish();
  object.close();
  return out;
} catch (const io::FormatError& error) {
  throw Error(std::string("timeline: ") + error.what());
}

}  // namespace stowage::report
