// Writes Python values as a pickle of protocol 2, which every Python 3 reads: dicts, lists, strings, integers, None.
// The reader needs no class of ours, so loading it runs no code.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace stowage::report {

class Pickle {
 public:
  Pickle() : out_("\x80\x02") {}  // PROTO 2

  void text(std::string_view value) {
    out_ += 'X';  // BINUNICODE: length in 4 bytes, UTF-8
    little(static_cast<std::uint32_t>(value.size()), 4);
    out_ += value;
  }
  void integer(std::int64_t value) {
    out_ += "\x8a\x08";  // LONG1 of 8 bytes, two's complement
    little(static_cast<std::uint64_t>(value), 8);
  }
  void none() { out_ += 'N'; }
  void begin_dict() { out_ += "}("; }  // then key, value, key, value ...
  void end_dict() { out_ += 'u'; }
  void begin_list() { out_ += "]("; }  // then items
  void end_list() { out_ += 'e'; }
  void field(std::string_view key, std::int64_t value) { text(key), integer(value); }
  void field(std::string_view key, std::string_view value) { text(key), text(value); }

  std::string finish() { return std::move(out_ += '.'); }

 private:
  void little(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::string out_;
};

}  // namespace stowage::report
