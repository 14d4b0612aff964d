// Each rule on the smallest graph that shows its pattern, and on a twin that does not; the peak against the checker's;
// the text.
#include "stowage/explain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "stowage/check.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "support/builder.h"
#include "support/random_graph.h"
#include "support/recurrent_graph.h"
#include "support/seed.h"

namespace stowage {
namespace {

// A step written op by op, with kinds and targets.
class TrainingStep {
 public:
  int add(const char* name, std::int64_t bytes, BufferKind kind, bool resident = false) {
    Buffer b;
    b.name = name;
    b.bytes = bytes;
    b.kind = kind;
    b.resident = resident;
    graph.buffers.push_back(b);
    return static_cast<int>(graph.buffers.size()) - 1;
  }
  int parameter(const char* name, std::int64_t bytes) { return add(name, bytes, BufferKind::kParameter, true); }
  int state(const char* name, std::int64_t bytes) { return add(name, bytes, BufferKind::kOptimizerState, true); }
  int activation(std::int64_t bytes) { return add("a", bytes, BufferKind::kActivation); }
  int gradient(std::int64_t bytes) { return add("g", bytes, BufferKind::kGradient); }
  int temporary(std::int64_t bytes) { return add("t", bytes, BufferKind::kTemporary); }

  Op& op(const char* target, std::vector<int> reads, std::vector<int> writes, std::vector<int> creates, int line = 0) {
    Op op;
    op.name = "op" + std::to_string(graph.ops.size());
    op.target = target;
    for (const int b : reads) op.reads.emplace_back(b);
    for (const int b : writes) op.writes.emplace_back(b);
    for (const int b : creates) op.creates.emplace_back(b);
    op.cost_ns = 1000;
    if (line > 0) op.meta = "{\"line\":\"/path/to/train.py:" + std::to_string(line) + "\"}";
    graph.ops.push_back(op);
    return graph.ops.back();
  }

  Explanation explained() {
    graph.name = "step";
    graph.align = 1;
    validate(graph);
    seal(graph);
    ExplainOptions options;
    options.prices = false;
    return explain(graph, std::nullopt, options);
  }
  Graph graph;
};

const Advice* find(const Explanation& e, const std::string& rule) {
  for (const Advice& advice : e.advice)
    if (advice.rule == rule) return &advice;
  return nullptr;
}

// Three layers whose gradients of 1000 bytes are scaled by what is made from all of them (`norm`), or each by itself.
TrainingStep clipped(bool norm) {
  TrainingStep s;
  std::vector<int> w, a, g, n;
  for (int i = 0; i < 3; ++i) w.push_back(s.parameter("w", 1000));
  for (int i = 0; i < 3; ++i) {
    a.push_back(s.activation(10));
    s.op("aten::mm",
         i == 0 ? std::vector{w[0]} : std::vector{w[static_cast<std::size_t>(i)], a[static_cast<std::size_t>(i) - 1]},
         {}, {a.back()}, 3);
  }
  for (std::size_t i = 3; i-- > 0;) {
    g.push_back(s.gradient(1000));
    s.op("aten::mm", {a[i]}, {}, {g.back()}, 4);
  }
  for (const int gradient : g) {
    n.push_back(s.temporary(4));
    s.op("aten::linalg_vector_norm", {gradient}, {}, {n.back()}, 5);
  }
  const int all = s.temporary(4), coefficient = s.temporary(4);
  s.op("aten::stack", n, {}, {all}, 5);
  s.op("aten::clamp", {all}, {}, {coefficient}, 5);
  for (std::size_t i = 0; i < 3; ++i) s.op("aten::mul_.Tensor", {norm ? coefficient : n[i]}, {g[i]}, {}, 5);
  for (std::size_t i = 0; i < 3; ++i) s.op("aten::add_.Tensor", {g[i]}, {w[2 - i]}, {}, 6);
  return s;
}

TEST(Explain, SaysThatClippingByNormNeedsAllGradients) {
  const Explanation e = clipped(true).explained();
  const Advice* advice = find(e, "gradients-meet");
  ASSERT_NE(advice, nullptr);
  EXPECT_NE(advice->text.find("clip_grad_norm_ (train.py:5)"), std::string::npos) << advice->text;
  ASSERT_TRUE(advice->arena_bytes);
  EXPECT_GE(e.result.plan->arena_bytes, 3000);
  EXPECT_LT(*advice->arena_bytes, 2000);  // one gradient at a time
  EXPECT_EQ(find(clipped(false).explained(), "gradients-meet"), nullptr);
}

// The gradient stays in memory between steps (to_none: it is made in each).
TrainingStep zeroed(bool kept) {
  TrainingStep s;
  const int w = s.parameter("w", 1000), kept_g = kept ? s.add("constant", 1000, BufferKind::kConstant, true) : -1;
  const int a = s.activation(100), made = kept ? s.temporary(1000) : s.gradient(1000);
  s.op("aten::mm", {w}, {}, {a}, 3);
  s.op("aten::mm", {a}, {}, {made}, 4);
  if (kept) s.op("aten::add_.Tensor", {made}, {kept_g}, {}, 4);
  s.op("aten::add_.Tensor", {kept ? kept_g : made}, {w}, {}, 5);
  if (kept) s.op("aten::zero_", {}, {kept_g}, {}, 6);
  return s;
}

TEST(Explain, SaysThatGradientsAreKept) {
  const Explanation e = zeroed(true).explained();
  const Advice* advice = find(e, "kept-gradients");
  ASSERT_NE(advice, nullptr);
  EXPECT_EQ(advice->held_bytes, 1000);
  EXPECT_NE(advice->text.find("(train.py:6)"), std::string::npos) << advice->text;
  EXPECT_EQ(find(zeroed(false).explained(), "kept-gradients"), nullptr);
}

// Two micro-batches whose activations take `activation` bytes each; gradients of 4 x 1000 are summed.
TrainingStep accumulated(std::int64_t activation) {
  TrainingStep s;
  std::vector<int> w, g;
  for (int i = 0; i < 4; ++i) w.push_back(s.parameter("w", 1000));
  for (int batch = 0; batch < 2; ++batch) {
    const int a = s.activation(activation);
    s.op("aten::mm", {w[0]}, {}, {a}, 3);
    for (std::size_t i = 0; i < 4; ++i) {
      const int made = batch == 0 ? s.gradient(1000) : s.temporary(1000);
      s.op("aten::mm", {a}, {}, {made}, 4);
      if (batch == 0) g.push_back(made);
      if (batch == 1) s.op("aten::add_.Tensor", {made}, {g[i]}, {}, 4);
    }
  }
  for (std::size_t i = 0; i < 4; ++i) s.op("aten::add_.Tensor", {g[i]}, {w[i]}, {}, 5);
  return s;
}

TEST(Explain, SaysWhenOneBatchWouldNeedLessThanItsParts) {
  const Advice* advice = nullptr;
  const Explanation small = accumulated(100).explained();
  ASSERT_NE(advice = find(small, "accumulation"), nullptr);
  EXPECT_NE(advice->text.find("2 micro-batches"), std::string::npos) << advice->text;
  EXPECT_EQ(find(accumulated(50000).explained(), "accumulation"), nullptr);  // there accumulation is what saves memory
}

TrainingStep tied(bool tied) {
  TrainingStep s;
  const int w = s.parameter("wte", 1000);
  const int a = s.activation(50), b = s.activation(50), first = tied ? s.temporary(1000) : s.gradient(1000),
            d = s.temporary(900);
  s.op("aten::embedding", {w}, {}, {a}, 3);
  s.op("aten::mm", {a, w}, {}, {b}, 3);
  s.op("aten::mm", {b}, {}, {first}, 4);
  s.op("aten::mm", {b}, {}, {d}, 4);
  const int e = s.temporary(900), second = tied ? s.temporary(1000) : s.gradient(1000);
  s.op("aten::mm", {d, a}, {}, {e}, 4);
  s.op("aten::embedding_dense_backward", {e}, {}, {second}, 4);
  if (tied) {
    const int g = s.gradient(1000);
    s.op("aten::add.Tensor", {first, second}, {}, {g}, 4);
    s.op("aten::add_.Tensor", {g}, {w}, {}, 5);
  } else {
    const int other = s.parameter("head", 1000);
    s.op("aten::add_.Tensor", {first}, {other}, {}, 5);
    s.op("aten::add_.Tensor", {second}, {w}, {}, 5);
  }
  return s;
}

TEST(Explain, SaysThatATiedWeightsGradientWaits) {
  const Explanation e = tied(true).explained();
  const Advice* advice = find(e, "tied-gradient");
  ASSERT_NE(advice, nullptr);
  EXPECT_NE(advice->text.find("wte"), std::string::npos) << advice->text;
  EXPECT_NE(advice->text.find("embedding_dense_backward"), std::string::npos) << advice->text;
  EXPECT_LT(*advice->arena_bytes, e.result.plan->arena_bytes);
  EXPECT_EQ(find(tied(false).explained(), "tied-gradient"), nullptr);
}

TrainingStep with_loss(std::int64_t logit_bytes) {
  TrainingStep s;
  const int w = s.parameter("w", 100), h = s.activation(1000), z = s.temporary(logit_bytes),
            p = s.activation(logit_bytes);
  const int loss = s.add("loss", 4, BufferKind::kOutput), dz = s.temporary(logit_bytes), g = s.gradient(100);
  s.graph.buffers[static_cast<std::size_t>(loss)].returned = true;
  s.op("aten::mm", {w}, {}, {h}, 3);
  s.op("aten::mm", {h, w}, {}, {z}, 3);
  s.op("aten::_log_softmax", {z}, {}, {p}, 4);
  s.op("aten::nll_loss_forward", {p}, {}, {loss}, 4);
  s.op("aten::_log_softmax_backward_data", {p}, {}, {dz}, 5);
  s.op("aten::mm", {dz, h}, {}, {g}, 5);
  s.op("aten::add_.Tensor", {g}, {w}, {}, 6);
  return s;
}

TEST(Explain, SaysThatLogitsHoldThePeak) {
  const Explanation e = with_loss(8000).explained();
  const Advice* advice = find(e, "logits");
  ASSERT_NE(advice, nullptr);
  EXPECT_EQ(e.result.plan->arena_bytes, 17004);  // two of the size of the logits, h and the loss
  EXPECT_EQ(*advice->arena_bytes, 5001);         // a quarter of each; the loss is one of them
  EXPECT_EQ(find(with_loss(80).explained(), "logits"), nullptr);
}

TrainingStep updated(bool fused) {
  TrainingStep s;
  const int w = s.parameter("w", 1000), v = s.state("exp_avg_sq", 1000), a = s.activation(100), g = s.gradient(1000);
  s.op("aten::mm", {w}, {}, {a}, 3);
  s.op("aten::mm", {a}, {}, {g}, 4);
  if (fused) {
    s.op("aten::_fused_adamw_", {g}, {w, v}, {}, 5);
  } else {
    const int root = s.temporary(1000), ratio = s.temporary(1000);
    s.op("aten::addcmul_", {g}, {v}, {}, 5);
    s.op("aten::sqrt", {v}, {}, {root}, 5);
    s.op("aten::div.Tensor", {root}, {}, {ratio}, 5);
    s.op("aten::addcdiv_", {g, ratio}, {w}, {}, 5);
  }
  return s;
}

TEST(Explain, SaysThatAFusedOptimizerMakesNoTemporaries) {
  const Explanation e = updated(false).explained();
  const Advice* advice = find(e, "update-temporaries");
  ASSERT_NE(advice, nullptr);
  EXPECT_EQ(*advice->arena_bytes, 1100);  // the gradient and what it is made from
  EXPECT_EQ(find(updated(true).explained(), "update-temporaries"), nullptr);
}

TEST(Explain, SaysThatResultsAreLarge) {
  TrainingStep s = with_loss(8000);
  s.graph.buffers[2].returned = true;  // the logits
  const Explanation e = s.explained();
  const Advice* advice = find(e, "returned");
  ASSERT_NE(advice, nullptr);
  EXPECT_LT(*advice->arena_bytes, e.result.plan->arena_bytes);
  EXPECT_EQ(find(with_loss(8000).explained(), "returned"), nullptr);
}

TEST(Explain, TellsActivationsAndResidentsByTheirShare) {
  TrainingStep activations;
  const int w = activations.parameter("w", 10), a = activations.activation(1000), g = activations.gradient(10);
  activations.op("aten::mm", {w}, {}, {a});
  activations.op("aten::mm", {a}, {}, {g});
  activations.op("aten::add_.Tensor", {g}, {w}, {});
  const Explanation e = activations.explained();
  EXPECT_NE(find(e, "activations"), nullptr);
  EXPECT_EQ(find(e, "residents"), nullptr);
  EXPECT_EQ(find(clipped(true).explained(), "activations"), nullptr);

  TrainingStep heavy = activations;
  heavy.graph.buffers[0].bytes = 100000;
  const int m = heavy.state("m", 200000);
  heavy.op("aten::mul_.Tensor", {}, {m}, {});
  const Explanation r = heavy.explained();
  ASSERT_NE(find(r, "residents"), nullptr);
  EXPECT_NE(find(r, "residents")->text.find("SGD with momentum"), std::string::npos);
}

TEST(Explain, PeakMomentAgreesWithTheCheckerOnRandomGraphs) {
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t seed = testing::first_seed() * 1000 + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Graph graph = testing::random_graph(random, {});
    const PlanResult result = plan(graph, {});
    const PeakMoment peak = peak_moment(graph, *result.plan);
    EXPECT_EQ(peak.bytes, check(graph, *result.plan).peak_bytes);
    EXPECT_EQ(std::accumulate(peak.holders.begin(), peak.holders.end(), std::int64_t{0},
                              [](std::int64_t sum, const PeakHolder& h) { return sum + h.bytes; }),
              peak.bytes);
    EXPECT_EQ(std::accumulate(peak.of_kind.begin(), peak.of_kind.end(), peak.scratch_bytes), peak.bytes);
  }
}

TEST(Explain, PricesAreRealPlansAndTheirTimesDoNotFall) {
  const TrainingStep step = [] {
    TrainingStep s = with_loss(8000);
    s.explained();
    return s;
  }();
  const Explanation e = explain(step.graph, std::nullopt, {});
  ASSERT_FALSE(e.prices.empty());
  EXPECT_EQ(e.prices[0].budget_bytes, e.result.resident_bytes + e.free_arena_bytes);
  for (std::size_t i = 0; i < e.prices.size(); ++i) {
    const PlanResult& r = e.prices[i].result;
    if (!r.plan) {
      EXPECT_EQ(i + 1, e.prices.size());
      continue;
    }
    EXPECT_TRUE(check(step.graph, *r.plan).valid);
    EXPECT_LE(r.resident_bytes + r.plan->arena_bytes, e.prices[i].budget_bytes);
    if (i > 0) {
      EXPECT_GE(r.step_ns, e.prices[i - 1].result.step_ns);
    }
  }
}

// Every rule meets graphs that nobody wrote with it in mind: in-place writers, reuse pairs of what a rule shrinks, empty
// buffers.
TEST(Explain, AnyGraphIsExplained) {
  using namespace stowage::testing;
  int advised = 0;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RandomGraphOptions shape;
    shape.ops = static_cast<int>(draw(random, 1, 14));
    shape.targets = true;
    const Graph graph = random_graph(random, shape);
    ExplainOptions options;
    options.prices = seed % 20 == 0;
    options.plan.order_node_budget = options.plan.layout_node_budget = 500;
    if (seed % 3 == 0)
      options.plan.budget_bytes = resident_bytes(graph) + program_peak_bytes(graph) * draw(random, 0, 8) / 8;
    const Explanation e = explain(graph, std::nullopt, options);
    advised += static_cast<int>(e.advice.size());
    EXPECT_FALSE(to_text(graph, e).empty());
    EXPECT_FALSE(to_json(graph, e).empty());
  }
  EXPECT_GT(advised, 100);
}

TEST(Explain, LeavesOutPricesThatItsWorkIsNotEnoughForAndSaysSo) {
  testing::RecurrentOptions recurrent;
  recurrent.steps = 8;
  const Graph graph = testing::recurrent_graph(recurrent);
  ExplainOptions options;
  options.price_work = 1;
  const Explanation e = explain(graph, std::nullopt, options);
  ASSERT_GT(e.prices_left_out, 0U);
  EXPECT_EQ(e.prices.size() + e.prices_left_out, 6U);
  ASSERT_FALSE(e.prices.empty());  // without a limit: costs nothing
  for (const Price& price : e.prices) EXPECT_TRUE(price.result.plan);
  EXPECT_NE(to_text(graph, e).find(std::to_string(e.prices_left_out) + " smaller budgets left out"), std::string::npos)
      << to_text(graph, e);
  EXPECT_NE(to_json(graph, e).find("\"prices_left_out\":" + std::to_string(e.prices_left_out)), std::string::npos);
}

TEST(Explain, ABudgetThatIsAskedForIsPlannedAsByPlanHoweverLittleWorkPricesHave) {
  testing::RecurrentOptions recurrent;
  recurrent.steps = testing::cases(5, 8);
  const Graph graph = testing::recurrent_graph(recurrent);
  const PlanResult free = plan(graph, {});
  ExplainOptions options;
  options.plan.budget_bytes = free.resident_bytes + free.plan->arena_bytes * 9 / 10;
  options.price_work = 1;
  const PlanResult planned = plan(graph, options.plan);
  const Explanation e = explain(graph, std::nullopt, options);
  ASSERT_EQ(e.result.plan.has_value(), planned.plan.has_value());
  EXPECT_EQ(e.result.outcome, planned.outcome);
  EXPECT_EQ(e.result.step_ns, planned.step_ns);
  EXPECT_EQ(e.result.smallest_bytes, planned.smallest_bytes);
}

TEST(Explain, TextIsOneScreen) {
  TrainingStep s = clipped(true);
  s.explained();
  const Explanation e = explain(s.graph, std::nullopt, {});
  for (const int width : {60, 100, 160}) {
    const std::string text = to_text(s.graph, e, width);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 50) << text;
    EXPECT_NE(text.find("What holds the peak"), std::string::npos);
    if (width >= 100) {
      EXPECT_NE(text.find("mm train.py:4"), std::string::npos) << text;
      EXPECT_NE(text.find("3 as g"), std::string::npos) << text;  // the gradients of the three layers are one row
    }
  }
}

TEST(Explain, ReadsSourceLines) {
  Op op;
  EXPECT_EQ(source_line(op), "");
  op.meta = R"({"line":"/a/b.py:7"})";
  EXPECT_EQ(source_line(op), "/a/b.py:7");
  op.meta = R"({ "other": 1, "line" : "C:\\x \"y\".py:7" })";
  EXPECT_EQ(source_line(op), R"(C:\x "y".py:7)");
  op.meta = R"({"line":7})";
  EXPECT_EQ(source_line(op), "");
}

TEST(Explain, RefusesAPlanOfAnotherGraph) {
  TrainingStep s = clipped(true);
  const Explanation e = s.explained();
  Plan plan = *e.result.plan;
  plan.placements.pop_back();
  EXPECT_THROW(explain(s.graph, plan, {}), InvalidPlan);
}

}  // namespace
}  // namespace stowage
