// The plan reader on any text; what it accepts is written as it was read, and the checker has a verdict on it.
#include "fuzz/target.h"
#include "stowage/check.h"
#include "stowage/io.h"
#include "support/builder.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  static const Graph graph = [] {
    testing::GraphBuilder g(64);
    const int a = g.buffer(100), b = g.returned(100);
    g.op({g.resident(8)}, {}, {a}).scratch = {{64, 0, 1}};
    g.op({a}, {}, {b});
    return g.build();
  }();
  fuzz::accepts([&] {
    Plan plan = parse_plan(fuzz::text_of(data, size), "input");
    const std::string text = to_json(plan);
    fuzz::require(to_json(parse_plan(text, "what was written")) == text, "a plan is written as it was read");
    plan.graph_sha256 = graph.sha256;
    const CheckReport report = check(graph, plan);
    fuzz::require(report.valid == report.message.empty(), "a plan is valid, or the checker says why not");
  });
  return 0;
}
