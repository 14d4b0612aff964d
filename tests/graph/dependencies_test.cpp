// The edges that buffers, rng, effects and `after` imply.
#include "graph/dependencies.h"

#include <gtest/gtest.h>

#include "support/builder.h"

namespace stowage::testing {
namespace {

std::vector<std::int32_t> preds(const Dependencies& deps, std::size_t op) {
  return {deps.preds[op].begin(), deps.preds[op].end()};
}
using Ids = std::vector<std::int32_t>;

TEST(Dependencies, ReadsAndWritesFollowTheLatestWriterAndWritesFollowTheReadersBetween) {
  GraphBuilder g;
  const int x = g.buffer(64);
  g.op({}, {}, {x});  // 0 creates
  g.op({x}, {}, {});  // 1 reads
  g.op({x}, {}, {});  // 2 reads
  g.op({}, {x}, {});  // 3 writes
  g.op({x}, {}, {});  // 4 reads the new version
  g.op({}, {x}, {});  // 5 writes
  const Dependencies deps = dependencies(g.build());
  EXPECT_EQ(preds(deps, 1), (Ids{0}));
  EXPECT_EQ(preds(deps, 2), (Ids{0}));
  EXPECT_EQ(preds(deps, 3), (Ids{0, 1, 2}));
  EXPECT_EQ(preds(deps, 4), (Ids{3}));
  EXPECT_EQ(preds(deps, 5), (Ids{3, 4}));
}

TEST(Dependencies, ResidentsOrderTheirReadersAndWritersToo) {
  GraphBuilder g;
  const int weight = g.resident(64);
  g.op({weight}, {}, {});
  g.op({}, {weight}, {});
  g.op({weight}, {}, {});
  const Dependencies deps = dependencies(g.build());
  EXPECT_EQ(preds(deps, 0), Ids{});
  EXPECT_EQ(preds(deps, 1), (Ids{0}));
  EXPECT_EQ(preds(deps, 2), (Ids{1}));
}

TEST(Dependencies, OfContentsAloneAReaderMayFollowTheNextWriterUnlessTheBufferIsResident) {
  GraphBuilder g;
  const int x = g.buffer(64), weight = g.resident(64);
  g.op({}, {}, {x});
  g.op({x, weight}, {}, {});
  g.op({}, {x}, {});
  g.op({}, {weight}, {});
  g.op({x}, {}, {}).after = {OpId(1)};
  const Dependencies deps = content_dependencies(g.build());
  EXPECT_EQ(preds(deps, 1), (Ids{0}));
  EXPECT_EQ(preds(deps, 2), (Ids{0}));
  EXPECT_EQ(preds(deps, 3), (Ids{1}));
  EXPECT_EQ(preds(deps, 4), (Ids{1, 2}));
}

TEST(Dependencies, RngOpsAndEffectOpsFormChainsAndAfterIsTaken) {
  GraphBuilder g;
  g.op({}, {}, {}).rng = true;
  g.op({}, {}, {}).effect = true;
  g.op({}, {}, {}).rng = true;
  Op& both = g.op({}, {}, {});
  both.rng = both.effect = true;
  g.op({}, {}, {}).after = {OpId(0), OpId(3)};
  const Dependencies deps = dependencies(g.build());
  EXPECT_EQ(preds(deps, 1), Ids{});
  EXPECT_EQ(preds(deps, 2), (Ids{0}));
  EXPECT_EQ(preds(deps, 3), (Ids{1, 2}));
  EXPECT_EQ(preds(deps, 4), (Ids{0, 3}));
}

TEST(Dependencies, SuccessorsAreThePredecessorsTurnedRoundWithoutDoubles) {
  GraphBuilder g;
  const int x = g.buffer(8), y = g.buffer(8);
  g.op({}, {}, {x, y});
  g.op({x, y}, {}, {});
  const Dependencies deps = dependencies(g.build());
  ASSERT_EQ(deps.succs[0].size(), 1U);
  EXPECT_EQ(deps.succs[0][0], 1);
  EXPECT_EQ(deps.preds[1].size(), 1U);
}

}  // namespace
}  // namespace stowage::testing
