// A strict walk over a JSON document, by simdjson's on-demand parser: one pass, nothing is kept.
//
//   JsonReader json(text);
//   json.read_object(json.root(), Where{}, keys, [&](std::size_t key, JsonReader::Value value) { ... });
//   json.finish();
//
// Each value is read as what the format says it is, or FormatError is thrown: a message of one line that says where the
// value stands. Unknown and repeated keys, floats where integers belong and text after the document are errors.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace stowage::io {

class FormatError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where a value stands: "op 7 'mm_3': reads[2]". Costs nothing until it is put into words.
struct Where {
  std::string_view item = {};         // "op"; empty at the top level
  std::int64_t id = -1;               // of the item
  const std::string* name = nullptr;  // of the item, once it is read
  std::string_view field = {};
  std::int64_t index = -1;     // in the field, when it is a list
  std::string_view part = {};  // of that entry, when it is an object

  [[nodiscard]] Where in_field(std::string_view f) const { return {item, id, name, f, -1, {}}; }
  [[nodiscard]] Where at(std::int64_t i) const { return {item, id, name, field, i, {}}; }
  [[nodiscard]] Where in_part(std::string_view p) const { return {item, id, name, field, index, p}; }

  [[noreturn]] void fail(std::string_view what) const;  // throws FormatError
};

using Keys = std::span<const std::string_view>;

class JsonReader {
 public:
  using Value = simdjson::ondemand::value;
  using Object = simdjson::ondemand::object;

  explicit JsonReader(std::string_view text);  // copies the text, with the padding that simdjson needs
  JsonReader(const JsonReader&) = delete;
  JsonReader& operator=(const JsonReader&) = delete;

  Object root();
  void finish();  // nothing but white space may follow

  static std::int64_t read_int(Value value, const Where& where, std::int64_t low, std::int64_t high);
  static std::int32_t read_int32(Value value, const Where& where, std::int32_t low = 0);
  static std::string read_string(Value value, const Where& where);
  static bool read_bool(Value value, const Where& where);
  static std::string read_meta(Value value, const Where& where);  // the text of an object, as it stands
  static Object to_object(Value value, const Where& where);
  static void expect_format(Value value, const Where& where, std::string_view format);
  static void expect_version_1(Value value, const Where& where);

  // Calls each(index, value) for every entry.
  template <class Each>
  void read_list(Value value, const Where& where, Each each) {
    simdjson::ondemand::array list;
    if (value.get_array().get(list) != simdjson::SUCCESS) where.fail("must be a list");
    std::int64_t index = 0;
    for (auto entry : list) {
      Value item;
      if (const auto error = entry.get(item)) fail_syntax(error);
      each(index++, item);
    }
  }

  // Calls each(key, value) for every member, key being its position in `keys` (at most 32). Returns the set of the keys
  // there.
  template <class Each>
  std::uint32_t read_object(Object object, const Where& where, Keys keys, Each each) {
    std::uint32_t seen = 0;
    for (auto member : object) {
      std::string_view name;
      if (const auto error = member.unescaped_key().get(name)) fail_syntax(error);
      const std::size_t key = find_key(name, where, keys, seen);
      Value value;
      if (const auto error = member.value().get(value)) fail_syntax(error);
      each(key, value);
    }
    return seen;
  }

  // Fails unless all of the first `count` keys are in the set `seen`.
  static void require_first(std::size_t count, std::uint32_t seen, const Where& where, Keys keys);

 private:
  [[noreturn]] void fail_syntax(simdjson::error_code error);
  // The position of `name` in `keys`; notes it in `seen`.
  static std::size_t find_key(std::string_view name, const Where& where, Keys keys, std::uint32_t& seen);

  simdjson::padded_string text_;
  simdjson::ondemand::parser parser_;
  simdjson::ondemand::document document_;
  bool open_ = false;  // the document can say where it stands
};

}  // namespace stowage::io
