// explain on small graphs with the targets that its rules look for: bytes add up, prices are plans that fit, text and
// JSON are whole.
#include <numeric>

#include "fuzz/decode_graph.h"
#include "fuzz/target.h"
#include "io/json_grammar.h"
#include "stowage/check.h"
#include "stowage/explain.h"
#include "support/random_plan.h"

namespace stowage::fuzz {
namespace {

void judge(const Graph& graph, const Explanation& e) {
  std::int64_t held = 0;
  for (const PeakHolder& holder : e.peak.holders) held += holder.bytes;
  require(held == e.peak.bytes, "what holds the peak adds up to it");
  require(std::accumulate(e.peak.of_kind.begin(), e.peak.of_kind.end(), e.peak.scratch_bytes) == e.peak.bytes,
          "kinds add up to the peak");
  if (e.result.plan) require(check(graph, *e.result.plan).peak_bytes == e.peak.bytes, "the peak is the checker's");
  for (const Price& price : e.prices) {
    if (!price.result.plan) continue;
    require(check(graph, *price.result.plan).valid, "a price is a valid plan");
    require(price.result.resident_bytes + price.result.plan->arena_bytes <= price.budget_bytes,
            "a price keeps its budget");
  }
  require(io::is_json_object(to_json(graph, e)), "the explanation is JSON");
}

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::ByteSource bytes(data, size);
  ExplainOptions options;
  options.plan = fuzz::decode_options(bytes);
  options.plan.order_node_budget = options.plan.layout_node_budget = 200;
  options.prices = bytes.chance(15);
  options.price_work = bytes.draw(0, 1 << 24);
  const bool given = bytes.chance(30), limited = bytes.chance(30);
  const auto graph = fuzz::decode_graph(bytes, 16);
  if (!graph) return 0;
  if (limited) options.plan.budget_bytes = fuzz::decode_budget(bytes, *graph);
  const auto plan = given ? std::optional(testing::simple_plan(*graph)) : std::nullopt;
  const Explanation explanation = explain(*graph, plan, options);
  fuzz::judge(*graph, explanation);
  fuzz::require(!to_text(*graph, explanation, static_cast<int>(bytes.draw(60, 200))).empty(), "there is a text");
  return 0;
}
