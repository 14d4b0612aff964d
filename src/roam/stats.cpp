#include <array>
#include <utility>

#include "base/concat.h"
#include "stowage/roam.h"

namespace stowage {

std::string to_json(const RoamStats& s) {
  const std::array<std::pair<std::string_view, std::int64_t>, 13> fields = {{
      {"insensitive_ops", s.insensitive_ops},
      {"shells", s.shells},
      {"independent_shells", s.independent_shells},
      {"update_branches", s.update_branches},
      {"delayed_branches", s.delayed_branches},
      {"order_leaves", s.order_leaves},
      {"order_proven", s.order_proven},
      {"order_ilps", s.order_ilps},
      {"layout_leaves", s.layout_leaves},
      {"layout_proven", s.layout_proven},
      {"layout_ilps", s.layout_ilps},
      {"evicted", s.evicted},
      {"multi_stream_peak_bytes", s.multi_stream_peak_bytes},
  }};
  std::string out = "{\"method\":\"roam\"";
  for (const auto& [name, value] : fields) out += concat(",\"", name, "\":", value);
  return out + "}";
}

}  // namespace stowage
