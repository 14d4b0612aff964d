#include <gtest/gtest.h>

#include <algorithm>

#include "sharding/redistribution.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "support/mesh.h"

namespace stowage::testing {
namespace {

ProgramTensor tensor_of(std::vector<std::int64_t> shape, std::int64_t item_bytes) {
  ProgramTensor tensor;
  tensor.shape = std::move(shape);
  tensor.item_bytes = item_bytes;
  return tensor;
}

// torch.chunk, as its documentation states it: chunks of ceil(size / n) until nothing is left.
std::vector<std::int64_t> chunks(std::int64_t size, std::int32_t n) {
  const std::int64_t whole = (size + n - 1) / n;
  std::vector<std::int64_t> parts;
  for (std::int32_t i = 0; i < n; ++i) {
    parts.push_back(std::min(whole, size));
    size -= parts.back();
  }
  return parts;
}

TEST(Placement, LocalBytesAreThoseOfChunks) {
  for (std::int64_t size = 0; size <= 17; ++size) {
    for (const std::int32_t n : {1, 2, 3, 4, 8}) {
      const auto parts = chunks(size, n);
      for (std::int32_t r = 0; r < n; ++r) {
        EXPECT_EQ(local_bytes(tensor_of({size, 5}, 4), parse_placement("S0"), mesh_of({n}), {r}),
                  parts[static_cast<std::size_t>(r)] * 20)
            << size << " over " << n << ", device " << r;
      }
    }
  }
}

TEST(Placement, LaterAxesCutTheSlicesOfEarlierOnes) {
  const ProgramTensor tensor = tensor_of({10, 3}, 2);
  const Mesh mesh = mesh_of({2, 2});
  const auto bytes = [&](std::int32_t a, std::int32_t b) {
    return local_bytes(tensor, parse_placement("S0,S0"), mesh, {a, b});
  };
  EXPECT_EQ(bytes(0, 0), 3 * 6);
  EXPECT_EQ(bytes(0, 1), 2 * 6);
  EXPECT_EQ(bytes(1, 0), 3 * 6);
  EXPECT_EQ(bytes(1, 1), 2 * 6);
  EXPECT_EQ(local_bytes(tensor, parse_placement("Psum,R"), mesh, {1, 1}), 60);
}

TEST(Placement, FirstDeviceIsTheFullest) {
  const Mesh mesh = mesh_of({3, 2});
  for (const Code code : all_codes(tensor_of({7, 5}, 1), 2)) {
    const ProgramTensor tensor = tensor_of({7, 5}, 1);
    std::int64_t most = 0;
    for (std::int32_t a = 0; a < 3; ++a)
      for (std::int32_t b = 0; b < 2; ++b)
        most = std::max(most, local_bytes(tensor, to_placement(code, 2), mesh, {a, b}));
    EXPECT_EQ(largest_bytes(tensor, code, mesh), most);
  }
}

TEST(Placement, TextsRoundTripAndBadOnesAreRefused) {
  for (const char* text : {"R", "S0,R", "S3,Psum,Pavg", "Pmax"}) EXPECT_EQ(to_text(parse_placement(text)), text);
  for (const char* text : {"", "S", "S-1", "Q", "S0,", "R R", "P"}) EXPECT_THROW(parse_placement(text), Error) << text;
}

TEST(Redistribution, CostsOfOneStep) {
  const ProgramTensor tensor = tensor_of({8, 8}, 100);
  const Ways ways(tensor, mesh_of({4}), kPartSum);
  const auto ns = [&](const char* from, const char* to) {
    return ways.between(to_code(parse_placement(from)), to_code(parse_placement(to))).ns;
  };
  const double gather = 3 * 1000 + 0.75 * 6400 / 100;
  EXPECT_DOUBLE_EQ(ns("S0", "R"), gather);
  EXPECT_DOUBLE_EQ(ns("Psum", "S1"), gather);
  EXPECT_DOUBLE_EQ(ns("Psum", "R"), 2 * gather);
  EXPECT_DOUBLE_EQ(ns("S0", "S1"), 3 * 1000 + 0.75 * 1600 / 100);
  EXPECT_DOUBLE_EQ(ns("R", "S0"), 0);
  EXPECT_DOUBLE_EQ(ns("S1", "S1"), 0);
}

TEST(Redistribution, AnEarlierAxisWaitsForTheLaterOneThatCutsItsSlices) {
  const ProgramTensor tensor = tensor_of({16}, 4);
  const Ways ways(tensor, mesh_of({2, 2}), kWhole);
  const Way way = ways.between(to_code(parse_placement("S0,S0")), to_code(parse_placement("R,S0")));
  std::vector<std::string> through = {"S0,S0"};
  for (const Hop& hop : way.hops) through.push_back(to_text(to_placement(hop.to, 2)));
  EXPECT_EQ(through, (std::vector<std::string>{"S0,S0", "S0,R", "R,R", "R,S0"}));
}

}  // namespace
}  // namespace stowage::testing
