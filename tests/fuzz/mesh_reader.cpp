// The small readers of sharding on any text: meshes, options, placements; and bytes as people write them.
#include "fuzz/target.h"
#include "stowage/bytes.h"
#include "stowage/io.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts([&] {
    const Mesh mesh = parse_mesh(text, "input");
    fuzz::require(mesh.devices() >= 1 && mesh.devices() <= 1'000'000, "a mesh has devices, and not too many");
  });
  fuzz::accepts([&] { parse_sharding_options(text, "input"); });
  fuzz::accepts([&] {
    const MeshPlacement placement = parse_placement(text);
    fuzz::require(parse_placement(to_text(placement)) == placement, "a placement is written as it was read");
  });
  fuzz::accepts([&] { fuzz::require(parse_bytes(text) >= 0, "bytes are not negative"); });
  return 0;
}
