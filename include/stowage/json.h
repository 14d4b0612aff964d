// Appends JSON to a string. Deterministic: numbers in their shortest form, only what must be escaped is escaped.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stowage::io {

void append_string(std::string& out, std::string_view text);
void append_int(std::string& out, std::int64_t value);
void append_double(std::string& out, double value);  // null when not finite

// One object, members in the order of the calls; close() ends it. Writes through to `out`, so that objects nest:
//   ObjectWriter object(out);  object.field("bytes", 4);  object.raw("meta", "{}");  object.close();
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out) : out_(out) { out_ += '{'; }

  void key(std::string_view name) {
    if (!first_) out_ += ',';
    first_ = false;
    append_string(out_, name);
    out_ += ':';
  }
  void field(std::string_view name, std::string_view value) { key(name), append_string(out_, value); }
  void field(std::string_view name, const char* value) { field(name, std::string_view(value)); }
  void field(std::string_view name, double value) { key(name), append_double(out_, value); }
  void field(std::string_view name, bool value) { raw(name, value ? "true" : "false"); }
  template <std::integral T>
  void field(std::string_view name, T value) {
    key(name), append_int(out_, static_cast<std::int64_t>(value));
  }
  template <class T>
  void field(std::string_view name, const std::optional<T>& value) {  // null when there is none
    if (value) {
      field(name, *value);
    } else {
      null(name);
    }
  }
  void null(std::string_view name) { raw(name, "null"); }
  void raw(std::string_view name, std::string_view json) { key(name), out_ += json; }
  void close() { out_ += '}'; }

 private:
  std::string& out_;
  bool first_ = true;
};

}  // namespace stowage::io
