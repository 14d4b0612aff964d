// A recursive descent over the grammar of RFC 8259, which keeps no values.
#include "io/json_grammar.h"

#include <cctype>

namespace stowage::io {
namespace {

constexpr int kDeepest = 64;

class Grammar {
 public:
  explicit Grammar(std::string_view text) : rest_(text) {}

  bool whole_object() {
    skip_space();
    if (!object(0)) return false;
    skip_space();
    return rest_.empty();
  }

 private:
  [[nodiscard]] char peek() const { return rest_.empty() ? '\0' : rest_.front(); }

  bool take(char c) {
    if (peek() != c || rest_.empty()) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  void skip_space() {
    while (take(' ') || take('\t') || take('\n') || take('\r')) {
    }
  }

  bool value(int depth) {
    switch (peek()) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': return string();
      case 't': return take("true");
      case 'f': return take("false");
      case 'n': return take("null");
      default: return number();
    }
  }

  // Items by item(), separated by commas, up to `close`.
  template <class Item>
  bool sequence(char open, char close, int depth, Item item) {
    if (depth >= kDeepest || !take(open)) return false;
    skip_space();
    if (take(close)) return true;
    while (item()) {
      skip_space();
      if (take(close)) return true;
      if (!take(',')) return false;
      skip_space();
    }
    return false;
  }

  bool object(int depth) {
    return sequence('{', '}', depth, [&] {
      if (!string()) return false;
      skip_space();
      if (!take(':')) return false;
      skip_space();
      return value(depth + 1);
    });
  }

  bool array(int depth) {
    return sequence('[', ']', depth, [&] { return value(depth + 1); });
  }

  bool string() {
    if (!take('"')) return false;
    while (!rest_.empty()) {
      const char c = rest_.front();
      if (static_cast<unsigned char>(c) < 0x20) return false;
      rest_.remove_prefix(1);
      if (c == '"') return true;
      if (c == '\\' && !escape()) return false;
    }
    return false;
  }

  bool escape() {
    const char c = peek();
    if (c != 'u') {
      if (c == '\0' || std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) return false;
      rest_.remove_prefix(1);
      return true;
    }
    if (rest_.size() < 5) return false;
    for (int i = 1; i <= 4; ++i) {
      if (std::isxdigit(static_cast<unsigned char>(rest_[static_cast<std::size_t>(i)])) == 0) return false;
    }
    rest_.remove_prefix(5);
    return true;
  }

  bool digits() {
    bool any = false;
    while (peek() >= '0' && peek() <= '9') {
      rest_.remove_prefix(1);
      any = true;
    }
    return any;
  }

  bool number() {
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    return true;
  }

  std::string_view rest_;
};

}  // namespace

bool is_json_object(std::string_view text) { return Grammar(text).whole_object(); }

}  // namespace stowage::io
