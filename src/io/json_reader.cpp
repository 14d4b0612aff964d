#include "io/json_reader.h"

#include <limits>

#include "base/concat.h"
#include "base/limits.h"
#include "base/quote.h"
#include "io/json_grammar.h"

namespace stowage::io {

void Where::fail(std::string_view what) const {
  std::string message;
  if (!item.empty()) {
    message += concat(item, " ", id);
    if (name != nullptr && !name->empty()) message += concat(" ", quote(*name));
    message += ": ";
  }
  if (!field.empty()) {
    message += field;
    if (index >= 0) message += concat("[", index, "]");
    if (!part.empty()) message += concat(".", part);
    message += ": ";
  }
  throw FormatError(message + std::string(what));
}

JsonReader::JsonReader(std::string_view text) : text_(text) {
  if (const auto error = parser_.iterate(text_).get(document_)) fail_syntax(error);
  open_ = true;
}

JsonReader::Object JsonReader::root() {
  simdjson::ondemand::json_type type;
  if (const auto error = document_.type().get(type)) fail_syntax(error);
  if (type != simdjson::ondemand::json_type::object) throw FormatError("must be a JSON object");
  Object object;
  if (const auto error = document_.get_object().get(object)) fail_syntax(error);
  return object;
}

void JsonReader::finish() {
  const char* rest = nullptr;
  if (document_.current_location().get(rest) == simdjson::SUCCESS) {
    throw FormatError(concat("byte ", rest - text_.data(), ": there is text after the JSON document"));
  }
}

std::int64_t JsonReader::read_int(Value value, const Where& where, std::int64_t low, std::int64_t high) {
  std::int64_t number = 0;
  if (value.get_int64().get(number) == simdjson::SUCCESS && number >= low && number <= high) return number;
  const auto bound = [](std::int64_t v) {
    return v == kMaxExact ? std::string("2^53 - 1") : v == -kMaxExact ? std::string("-(2^53 - 1)") : std::to_string(v);
  };
  where.fail(concat("must be an integer from ", bound(low), " to ", bound(high)));
}

std::int32_t JsonReader::read_int32(Value value, const Where& where, std::int32_t low) {
  return static_cast<std::int32_t>(read_int(value, where, low, std::numeric_limits<std::int32_t>::max()));
}

std::string JsonReader::read_string(Value value, const Where& where) {
  std::string_view text;
  if (value.get_string().get(text) != simdjson::SUCCESS) where.fail("must be a string");
  return std::string(text);
}

bool JsonReader::read_bool(Value value, const Where& where) {
  bool flag = false;
  if (value.get_bool().get(flag) != simdjson::SUCCESS) where.fail("must be true or false");
  return flag;
}

std::string JsonReader::read_meta(Value value, const Where& where) {
  Object object = to_object(value, where);
  std::string_view raw;
  if (object.raw_json().get(raw) != simdjson::SUCCESS) where.fail("is not valid JSON");
  const auto end = raw.find_last_not_of(" \t\r\n");
  raw = raw.substr(0, end == std::string_view::npos ? 0 : end + 1);
  if (!is_json_object(raw)) where.fail("is not a valid JSON object (or is nested deeper than 64)");
  return std::string(raw);
}

JsonReader::Object JsonReader::to_object(Value value, const Where& where) {
  Object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) where.fail("must be an object");
  return object;
}

void JsonReader::expect_format(Value value, const Where& where, std::string_view format) {
  const std::string found = read_string(value, where);
  if (found != format) where.fail(concat("is ", quote(found), ", not ", quote(format)));
}

void JsonReader::expect_version_1(Value value, const Where& where) {
  const auto version = read_int(value, where, 1, kMaxExact);
  if (version != 1) where.fail(concat("version ", version, " is not supported, only 1"));
}

void JsonReader::require_first(std::size_t count, std::uint32_t seen, const Where& where, Keys keys) {
  for (std::size_t key = 0; key < count; ++key) {
    if ((seen >> key & 1U) == 0) where.fail(concat("the key ", quote(keys[key]), " is missing"));
  }
}

std::size_t JsonReader::find_key(std::string_view name, const Where& where, Keys keys, std::uint32_t& seen) {
  for (std::size_t key = 0; key < keys.size(); ++key) {
    if (keys[key] != name) continue;
    if ((seen >> key & 1U) != 0) where.fail(concat("the key ", quote(name), " is there twice"));
    seen |= std::uint32_t{1} << key;
    return key;
  }
  where.fail(concat("unknown key ", quote(name)));
}

void JsonReader::fail_syntax(simdjson::error_code error) {
  const char* place = nullptr;
  const bool known = open_ && document_.current_location().get(place) == simdjson::SUCCESS && place > text_.data() &&
                     place <= text_.data() + text_.size();
  const std::string at = known ? concat("byte ", place - text_.data(), ": ") : std::string();
  throw FormatError(concat(at, "not valid JSON: ", simdjson::error_message(error)));
}

}  // namespace stowage::io
