// The graph reader on any text: a graph that keeps the format's rules and is written as it was read, or one line that
// refuses.
#include "fuzz/target.h"
#include "stowage/io.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::accepts([&] {
    const Graph graph = parse_graph(fuzz::text_of(data, size), "input");
    validate(graph);
    const std::string text = to_json(graph);
    const Graph again = parse_graph(text, "what was written");
    fuzz::require(to_json(again) == text, "a graph is written as it was read");
    fuzz::require(again.sha256 == sha256_hex(text), "the digest is of the text");
  });
  return 0;
}
