// Readers and checker on damaged text: they accept it or throw Error with one line, and never do anything else. The
// graphs are valid by construction; then bytes are changed, dropped, doubled or cut off. STOWAGE_TEST_SEED picks the
// seed.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "io/gzip.h"
#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "support/random_graph.h"
#include "support/random_plan.h"

namespace stowage::testing {
namespace {

constexpr std::array<std::string_view, 16> kPieces = {"{",  "}", "[",  "]",   ",",    ":",     "\"",   "-",
                                                      "\\", "0", "1e", "1.5", "null", "99999", "\xc3", R"("reads")"};

void damage(std::string& text, std::mt19937_64& random) {
  if (text.empty()) return;
  const auto at = static_cast<std::size_t>(draw(random, 0, std::ssize(text) - 1));
  const auto count = static_cast<std::size_t>(draw(random, 1, 12));
  switch (draw(random, 0, 6)) {
    case 0: text[at] = static_cast<char>(draw(random, 0, 255)); break;
    case 1: text[at] = static_cast<char>('0' + draw(random, 0, 9)); break;
    case 2: text.erase(at, count); break;
    case 3: text.insert(at, text.substr(at, count)); break;
    case 4: text.resize(at); break;
    default: text.insert(at, kPieces[static_cast<std::size_t>(draw(random, 0, std::ssize(kPieces) - 1))]); break;
  }
}

// The message of the error that `action` throws, or nothing.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Digits are changed more than they are in bytes taken at random: these texts stay readable.
void change_digits(std::string& text, std::mt19937_64& random) {
  if (text.empty()) return;
  for (int tries = 0; tries < 50; ++tries) {
    const auto at = static_cast<std::size_t>(draw(random, 0, std::ssize(text) - 1));
    if (text[at] >= '0' && text[at] <= '9') {
      text[at] = static_cast<char>('0' + draw(random, 0, 9));
      return;
    }
  }
}

TEST(Fuzz, DamagedTextIsReadOrRefused) {
  const char* chosen = std::getenv("STOWAGE_TEST_SEED");
  const std::uint64_t first = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 1;
  int read = 0;
  int refused = 0;
  for (std::uint64_t seed = first; seed < first + 4000; ++seed) {
    SCOPED_TRACE("STOWAGE_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = static_cast<int>(draw(random, 1, 8));
    const Graph graph = random_graph(random, options);
    std::string graph_text = to_json(graph);
    std::string plan_text = to_json(simple_plan(graph));
    for (auto* text : {&graph_text, &plan_text}) {
      for (auto i = draw(random, 0, 2); i > 0; --i)
        chance(random, 50) ? damage(*text, random) : change_digits(*text, random);
    }
    const std::string message = error_of([&] {
      Graph read_graph = parse_graph(graph_text, "graph");
      const Plan read_plan = parse_plan(plan_text, "plan");
      read_graph.sha256 = read_plan.graph_sha256;
      const CheckReport report = check(read_graph, read_plan);
      EXPECT_EQ(report.valid, report.message.empty());
      EXPECT_EQ(to_json(parse_graph(to_json(read_graph), "again")), to_json(read_graph));
      ++read;
    });
    refused += !message.empty();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 500);
}

TEST(Fuzz, DamagedGzipIsReadOrRefused) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::string data = io::gzip(to_json(random_graph(random, {})));
    damage(data, random);
    error_of([&] { io::gunzip(data, 1 << 20); });
  }
}

}  // namespace
}  // namespace stowage::testing
