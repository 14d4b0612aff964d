// Changes of three kinds: of bytes (any format), of numbers as text (sizes and ids at the ends of their ranges), and of
// pieces of JSON and CSV.
#include "fuzz/mutate_bytes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace stowage::fuzz {
namespace {

constexpr std::size_t kMostBytes = 1 << 16;

constexpr std::array<std::string_view, 26> kPieces = {
    "{",        "}",       "[",         "]",     ",",    ":",    "\"",      "-",       "\\",   "\n",
    "0",        "1e",      "1.5",       "1e400", "null", "true", "\\u0000", "\\ud800", "\xc3", "\xef\xbb\xbf",
    "[[[[[[[[", "{\"a\":", "\"reads\"", "\"\"",  " ",    "\r\n"};
constexpr std::array<std::string_view, 16> kNumbers = {"0",
                                                       "1",
                                                       "-1",
                                                       "2",
                                                       "127",
                                                       "255",
                                                       "256",
                                                       "65536",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967295",
                                                       "9007199254740991",
                                                       "9007199254740992",
                                                       "9223372036854775807",
                                                       "18446744073709551615",
                                                       "100000000000000000"};

class Mutation {
 public:
  Mutation(const std::vector<std::string>& pool, std::mt19937_64& random) : pool_(pool), random_(random) {}

  std::string run() {
    if (below(8) == 0) return noise(below(400));
    text_ = pool_[below(pool_.size())];
    if (text_.empty()) return noise(below(400));
    for (std::size_t changes = std::size_t{1} << below(5); changes > 0; --changes) change();
    if (text_.size() > kMostBytes) text_.resize(kMostBytes);
    return std::move(text_);
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  std::size_t position() { return below(text_.size() + 1); }

  std::string noise(std::size_t count) {
    std::string bytes;
    for (; count > 0; --count) bytes += static_cast<char>(random_());
    return bytes;
  }

  void change() {
    const std::size_t at = position(), count = 1 + below(below(4) == 0 ? 200 : 8);
    if (text_.empty()) {
      text_ = noise(count);
      return;
    }
    char& byte = text_[std::min(at, text_.size() - 1)];
    switch (below(12)) {
      case 0: byte = static_cast<char>(random_()); break;
      case 1: byte = static_cast<char>(byte ^ 1 << below(8)); break;
      case 2: byte = static_cast<char>(byte + (below(2) == 0 ? 1 : -1)); break;
      case 3: text_.erase(at, count); break;
      case 4: text_.insert(at, text_.substr(at, count)); break;
      case 5: text_.insert(position(), text_.substr(at, count)); break;
      case 6: text_.insert(at, noise(count)); break;
      case 7:
        if (below(4) == 0) text_.resize(at);
        break;
      case 8: text_.insert(at, kPieces[below(kPieces.size())]); break;
      case 9: splice(at, count); break;
      default: replace_number(at); break;
    }
  }

  // A part of another input.
  void splice(std::size_t at, std::size_t count) {
    const std::string& other = pool_[below(pool_.size())];
    text_.insert(at, other.substr(below(other.size() + 1), count));
  }

  // The next number after `at`.
  void replace_number(std::size_t at) {
    constexpr std::string_view kDigits = "0123456789";
    const std::size_t from = text_.find_first_of(kDigits, at);
    if (from == std::string::npos) return;
    const std::size_t to = std::min(text_.find_first_not_of(kDigits, from), text_.size());
    const std::string small = std::to_string(below(20));
    text_.replace(from, to - from, below(2) == 0 ? std::string_view(small) : kNumbers[below(kNumbers.size())]);
  }

  const std::vector<std::string>& pool_;
  std::mt19937_64& random_;
  std::string text_;
};

}  // namespace

std::string mutated(const std::vector<std::string>& pool, std::mt19937_64& random) {
  return Mutation(pool, random).run();
}

}  // namespace stowage::fuzz
