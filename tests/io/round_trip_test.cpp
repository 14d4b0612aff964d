// What is written reads back as it was, and is written again as the same bytes.
#include <gtest/gtest.h>

#include "stowage/check.h"
#include "stowage/io.h"
#include "support/builder.h"
#include "support/random_graph.h"
#include "support/random_plan.h"

namespace stowage::testing {
namespace {

TEST(RoundTrip, RandomGraphsAndPlans) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions options;
    options.ops = static_cast<int>(draw(random, 0, 30));
    const Graph graph = random_graph(random, options);
    const std::string text = to_json(graph);
    const Graph again = parse_graph(text, "graph");
    EXPECT_EQ(to_json(again), text);
    EXPECT_EQ(again.sha256, graph.sha256);
    Plan plan = simple_plan(graph);
    for (int i = 0; i < 20 && !graph.ops.empty(); ++i) {
      Plan changed = mutate(graph, plan, random);
      if (check(graph, changed).valid) plan = std::move(changed);
    }
    const std::string plan_text = to_json(plan);
    EXPECT_EQ(to_json(parse_plan(plan_text, "plan")), plan_text);
  }
}

TEST(RoundTrip, TextSurvivesEscapes) {
  GraphBuilder builder;
  builder.op({}, {}, {}).name = "quote \" slash \\ line \n tab \t bell \a snowman \u2603 nul " + std::string(1, '\0');
  const Graph graph = builder.build();
  EXPECT_EQ(parse_graph(to_json(graph), "graph").ops[0].name, graph.ops[0].name);
}

TEST(RoundTrip, MetaIsCarriedAsItStands) {
  const std::string meta = R"({ "big": 123456789012345678901234567890, "x": [1e-7, {"y": null}] })";
  GraphBuilder builder;
  builder.op({}, {}, {}).meta = meta;
  Graph graph = builder.build();
  graph.meta = meta;
  seal(graph);
  const Graph again = parse_graph(to_json(graph), "graph");
  EXPECT_EQ(again.meta, meta);
  EXPECT_EQ(again.ops[0].meta, meta);
  Plan plan;
  plan.meta = meta;
  EXPECT_EQ(parse_plan(to_json(plan), "plan").meta, meta);
}

TEST(RoundTrip, DefaultsAreLeftOut) {
  GraphBuilder builder;
  builder.op({}, {}, {});
  EXPECT_EQ(to_json(builder.build()),
            "{\"format\":\"stowage-graph\",\"version\":1,\"name\":\"built\",\"align\":1,\"buffers\":[],\"ops\":[\n"
            "{\"name\":\"op0\",\"target\":\"test::op\"}\n]}\n");
}

}  // namespace
}  // namespace stowage::testing
