// The reader of pipelines, and of what it accepts the plan and its text.
#include <algorithm>

#include "fuzz/target.h"
#include "stowage/io.h"
#include "stowage/pipeline.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::accepts([&] {
    PipelineProblem problem = parse_pipeline(fuzz::text_of(data, size), "fuzz");
    problem.node_limit = std::min<std::int64_t>(problem.node_limit, 200);
    const PipelinePlan plan = plan_pipeline(problem);
    if (!plan.stages.empty()) {
      const PipelineReport report = check_pipeline(problem, plan);
      fuzz::require(report.valid, report.message);
    }
    fuzz::require(!to_json(plan).empty(), "a plan has a text");
  });
  return 0;
}
