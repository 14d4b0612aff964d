// The rules of the plan format that hold for a plan alone, broken in turn: name, JSON, a part of the message.
#include <gtest/gtest.h>

#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage::testing {
namespace {

struct PlanCase {
  const char* name;
  std::string json;
  const char* message;
};

std::string plan(const std::string& steps, const std::string& placements = "", const std::string& scratch = "") {
  return R"({"format":"stowage-plan","version":1,"graph_sha256":"00","align":64,"arena_bytes":128,"meta":{},"steps":[)" +
         steps + R"(],"placements":[)" + placements + R"(],"scratch":[)" + scratch + "]}";
}

std::vector<PlanCase> cases() {
  const std::string good = plan(R"({"op":0})");
  return {
      {"Truncated", good.substr(0, good.size() - 1), "not valid JSON"},
      {"Trailing", good + "{}", "text after the JSON document"},
      {"TrailingList", good + "[]", "not valid JSON"},
      {"OtherFormat", R"({"format":"stowage-graph"})", "format: is 'stowage-graph', not 'stowage-plan'"},
      {"OtherVersion", R"({"format":"stowage-plan","version":7})", "version: version 7 is not supported"},
      {"NoSteps",
       R"({"format":"stowage-plan","version":1,"graph_sha256":"","align":1,"arena_bytes":0,"placements":[]})",
       "the key 'steps' is missing"},
      {"UnknownKey", R"({"format":"stowage-plan","peak_bytes":1})", "unknown key 'peak_bytes'"},
      {"NegativeArena", R"({"format":"stowage-plan","arena_bytes":-1})", "arena_bytes: must be an integer from 0"},
      {"AlignZero", R"({"format":"stowage-plan","align":0})", "align: must be an integer from 1"},
      {"DigestNumber", R"({"graph_sha256":5})", "graph_sha256: must be a string"},
      {"StepNoObject", plan("0"), "step 0: must be an object"},
      {"StepEmpty", plan(R"({"op":0},{})"), "step 1: must have the keys 'op', or"},
      {"StepOfTwoKinds", plan(R"({"op":0,"swap_in":1,"until":1})"), "step 0: must have the keys"},
      {"SwapWithoutUntil", plan(R"({"swap_in":1})"), "step 0: must have the keys"},
      {"OpWithUntil", plan(R"({"op":0,"until":1})"), "step 0: must have the keys"},
      {"StepUnknownKey", plan(R"({"run":0})"), "step 0: unknown key 'run'"},
      {"OpFloat", plan(R"({"op":0.0})"), "step 0: op: must be an integer"},
      {"OpNegative", plan(R"({"op":-1})"), "step 0: op: must be an integer from 0"},
      {"OpHuge", plan(R"({"op":2147483648})"), "step 0: op: must be an integer from 0 to 2147483647"},
      {"UntilItself", plan(R"({"op":0},{"swap_out":0,"until":1})"), "step 1: until: 1 is not in (1, 2]"},
      {"UntilBeyondTheEnd", plan(R"({"swap_out":0,"until":3},{"op":0})"), "step 0: until: 3 is not in (0, 2]"},
      {"PlacementNoOffset", plan("", R"({"buffer":0,"from":0,"to":1})"), "placement 0: the key 'offset' is missing"},
      {"PlacementFloat", plan("", R"({"buffer":0,"from":0,"to":1,"offset":0.5})"),
       "placement 0: offset: must be an integer"},
      {"PlacementHugeOffset", plan("", R"({"buffer":0,"from":0,"to":1,"offset":9223372036854775807})"),
       "placement 0: offset: must be"},
      {"PlacementTwice", plan("", R"({"buffer":0,"buffer":1,"from":0,"to":1,"offset":0})"),
       "placement 0: the key 'buffer' is there twice"},
      {"ScratchNoIndex", plan("", "", R"({"step":0,"offset":1})"), "scratch 0: the key 'index' is missing"},
      {"ScratchString", plan("", "", R"({"step":"0","index":0,"offset":1})"), "scratch 0: step: must be an integer"},
  };
}

TEST(PlanReader, RefusesBrokenPlans) {
  for (const PlanCase& broken : cases()) {
    SCOPED_TRACE(broken.name);
    try {
      parse_plan(broken.json, "x.plan.json");
      ADD_FAILURE() << "was accepted";
    } catch (const InvalidPlan& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with("x.plan.json: ")) << message;
      EXPECT_NE(message.find(broken.message), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST(PlanReader, ReadsEveryField) {
  const Plan p = parse_plan(plan(R"({"op":3},{"until":2,"swap_out":1},{"swap_in":1,"until":3})",
                                 R"({"buffer":1,"from":0,"to":2,"offset":64})", R"({"step":0,"index":1,"offset":0})"),
                            "p");
  EXPECT_EQ(p.graph_sha256, "00");
  EXPECT_EQ(p.align, 64);
  EXPECT_EQ(p.arena_bytes, 128);
  ASSERT_EQ(p.steps.size(), 3U);
  EXPECT_EQ(p.steps[0].op, OpId(3));
  EXPECT_EQ(p.steps[1].kind, Step::Kind::kSwapOut);
  EXPECT_EQ(p.steps[1].until, 2);
  EXPECT_EQ(p.steps[2].kind, Step::Kind::kSwapIn);
  EXPECT_EQ(p.steps[2].buffer, BufferId(1));
  ASSERT_EQ(p.placements.size(), 1U);
  EXPECT_EQ(p.placements[0].offset, 64);
  ASSERT_EQ(p.scratch.size(), 1U);
  EXPECT_EQ(p.scratch[0].index, 1);
}

TEST(PlanReader, ScratchMayBeLeftOut) {
  const Plan p = parse_plan(
      R"({"format":"stowage-plan","version":1,"graph_sha256":"","align":1,"arena_bytes":0,"steps":[],"placements":[]})",
      "p");
  EXPECT_TRUE(p.scratch.empty());
}

}  // namespace
}  // namespace stowage::testing
