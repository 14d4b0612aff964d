#include "rivals/layout_kinds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace stowage::rivals {
namespace {

using Items = std::vector<LayoutItem>;

// The same draws with every standard library, unlike <random>'s distributions.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : engine_(seed) {}
  std::int64_t in(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }
  double unit() { return static_cast<double>(engine_() >> 11) / 9007199254740992.0; }
  bool chance(int percent) { return in(0, 99) < percent; }
  std::int64_t log_uniform(double least, double most) {
    return static_cast<std::int64_t>(least * std::pow(most / least, unit()));
  }
  std::int64_t pareto(double least, double shape, double most) {
    return static_cast<std::int64_t>(std::min(most, least / std::pow(1 - unit(), 1 / shape)));
  }

 private:
  std::mt19937_64 engine_;
};

// A network of convolutions: each layer keeps its activations for its backward; statistics and small ones beside them;
// gradients of weights live for moments or, one in four, until the end.
Items somas(std::size_t count, Draws& draw) {
  constexpr std::size_t kPerLayer = 16;
  const auto layers = static_cast<std::int64_t>(count / kPerLayer + 1);
  const std::int64_t end = layers * 20;
  Items items;
  for (std::int64_t layer = 0; items.size() < count; ++layer) {
    const std::int64_t at = layer % layers * 10, back = end - at - 10;
    const std::int64_t stage = 4 * (layer % layers) / layers;
    const std::int64_t plane = (std::int64_t{51380224} >> stage) >> draw.in(0, 2);
    const std::int64_t weights = ((std::int64_t{9408} << (2 * stage)) << draw.in(0, 2)) / 512 * 512 + 512;
    for (int k = 0; k < 2; ++k) items.push_back({at + 2 * k, back + draw.in(1, 8), plane >> draw.in(0, 1)});
    for (int k = 0; k < 4; ++k) items.push_back({at + k, back + draw.in(2, 8), 512 * draw.in(1, 16)});
    for (int k = 0; k < 3; ++k) items.push_back({at + 3 * k, at + 3 * k + draw.in(2, 7), plane >> draw.in(0, 3)});
    for (int k = 0; k < 4; ++k) items.push_back({back + 2 * k, back + 2 * k + draw.in(2, 9), plane >> draw.in(0, 2)});
    for (int k = 0; k < 3; ++k)
      items.push_back({back + 3 * k, draw.chance(25) ? end + 10 : back + 3 * k + draw.in(2, 12), weights});
  }
  return items;
}

Items lifetimes(std::size_t count, Draws& draw) {
  const auto end = static_cast<std::int64_t>(count) * 17 / 10 + 10;
  std::vector<std::int64_t> shapes;
  for (int k = 0; k < 200; ++k) {
    const std::int64_t base = std::int64_t{1} << draw.in(3, 27);
    shapes.push_back(base * draw.in(4, 9) / 4 + (draw.chance(60) ? 1 : 0));
  }
  Items items;
  while (items.size() < count) {
    const std::int64_t at = draw.in(0, end - 3);
    const std::int64_t life =
        draw.chance(55) ? draw.log_uniform(2, 120) : draw.log_uniform(30, static_cast<double>(end) / 2);
    const auto shape = static_cast<std::size_t>(draw.in(0, 199) * draw.in(0, 199) / 199);
    items.push_back({at, std::min(end, at + life), shapes[shape]});
  }
  return items;
}

// Forward, then backward in reverse. Blocks are alike up to a few, as of experts with other widths.
Items nested(std::size_t count, Draws& draw) {
  constexpr std::size_t kPerBlock = 40;
  const auto blocks = static_cast<std::int64_t>(count / kPerBlock + 1);
  constexpr std::int64_t kSteps = 64;
  const std::int64_t end = 2 * blocks * kSteps;
  Items items;
  for (std::int64_t block = 0; items.size() < count; ++block) {
    const std::int64_t at = block % blocks * kSteps, back = end - at - kSteps;
    const std::int64_t row = 1024 * 768 * 4 * (draw.chance(20) ? draw.in(5, 8) : 4) / 4;
    for (int k = 0; k < 14; ++k) {
      const std::int64_t step = draw.in(0, kSteps - 2);
      const std::int64_t wide = draw.chance(20) ? 4 : draw.chance(15) ? 3 : 1;
      items.push_back({at + step, back + kSteps - 1 - step, draw.chance(25) ? row / 768 : row * wide});
    }
    for (int k = 0; k < 26; ++k) {
      const std::int64_t from = (draw.chance(60) ? back : at) + draw.in(0, kSteps - 1);
      items.push_back({from, from + draw.in(1, 6), draw.chance(30) ? row / 768 : row * draw.in(1, 4)});
    }
  }
  return items;
}

Items short_long(std::size_t count, Draws& draw) {
  const auto end = static_cast<std::int64_t>(count);
  Items items;
  while (items.size() < count) {
    const std::int64_t at = draw.in(0, end - 2);
    if (draw.chance(90))
      items.push_back({at, std::min(end, at + draw.in(1, 24)), 64 * draw.log_uniform(1, 65536)});
    else
      items.push_back({at, std::min(end, at + draw.log_uniform(100, static_cast<double>(end) / 2 + 200)),
                       64 * draw.log_uniform(1, 4096)});
  }
  return items;
}

Items periodic(std::size_t count, Draws& draw) {
  constexpr std::int64_t kPeriod = 200, kEach = 120;
  Items pattern;
  for (std::int64_t k = 0; k < kEach; ++k) {
    const std::int64_t at = draw.in(0, kPeriod - 1);
    pattern.push_back({at, at + draw.log_uniform(2, kPeriod * 1.5), draw.log_uniform(4096, 1 << 24)});
  }
  Items items;
  for (std::int64_t turn = 0; items.size() < count; ++turn)
    for (const LayoutItem& p : pattern)
      items.push_back({p.lower + turn * kPeriod, p.upper + turn * kPeriod + draw.in(0, 2),
                       p.bytes * draw.in(97, 103) / 100 / 256 * 256 + 256});
  return items;
}

// Pairs of neighbours: the small one stays, the large one goes and leaves a hole in which the next but one just does not
// fit.
Items slivers(std::size_t count, Draws& draw) {
  constexpr std::int64_t kLive = 64;
  Items items;
  std::int64_t time = 0;
  for (std::int64_t large = 1 << 16; items.size() < count; large += large / 64 + 1) {
    if (large > std::int64_t{1} << 26) large = 1 << 16;
    for (std::int64_t k = 0; k < kLive; ++k) {
      const std::int64_t small = std::max<std::int64_t>(16, large / draw.in(8, 64));
      items.push_back({time + k, time + kLive + draw.in(0, 3), large});
      items.push_back({time + k, time + kLive * draw.in(1, 12), small});
    }
    time += kLive;
  }
  return items;
}

Items uniform(std::size_t count, Draws& draw) {
  const auto end = static_cast<std::int64_t>(count);
  const std::int64_t longest = std::min<std::int64_t>(end / 2 + 1, 600);
  Items items;
  while (items.size() < count) {
    const std::int64_t at = draw.in(0, end - 1);
    items.push_back({at, std::min(end, at + draw.in(1, longest)), draw.in(1, 1 << 20)});
  }
  return items;
}

Items power(std::size_t count, Draws& draw) {
  const auto end = static_cast<std::int64_t>(count) * 2;
  Items items;
  while (items.size() < count) {
    const std::int64_t at = draw.in(0, end - 1);
    items.push_back(
        {at, std::min(end, at + draw.pareto(4, 0.8, static_cast<double>(end) / 3)), draw.pareto(64, 0.9, 1e9)});
  }
  return items;
}

void cut(Draws& draw, LayoutItem piece, std::size_t into, Items& items) {
  const bool across = draw.chance(50) ? piece.bytes >= 2 : piece.upper - piece.lower < 2;
  if (into <= 1 || (across ? piece.bytes < 2 : piece.upper - piece.lower < 2)) {
    items.push_back(piece);
    return;
  }
  const auto left = static_cast<std::size_t>(std::max(1.0, static_cast<double>(into) * (0.2 + 0.6 * draw.unit())));
  const double share =
      std::clamp(static_cast<double>(left) / static_cast<double>(into) + 0.2 * (draw.unit() - 0.5), 0.02, 0.98);
  LayoutItem rest = piece;
  if (across) {
    piece.bytes = std::clamp<std::int64_t>(static_cast<std::int64_t>(share * static_cast<double>(piece.bytes)), 1,
                                           piece.bytes - 1);
    rest.bytes -= piece.bytes;
  } else {
    const std::int64_t life = piece.upper - piece.lower;
    piece.upper = rest.lower =
        piece.lower +
        std::clamp<std::int64_t>(static_cast<std::int64_t>(share * static_cast<double>(life)), 1, life - 1);
  }
  cut(draw, piece, left, items);
  cut(draw, rest, into - left, items);
}

// Sixteen rows of unequal bytes; a row is cut in time, and now and then two neighbours in address change their border.
Items tiled(std::size_t count, Draws& draw) {
  constexpr std::int64_t kUnit = 1024, kHeight = 1024, kLife = 24;
  const auto end = static_cast<std::int64_t>(count) * kLife / 16 + kLife;
  Items items;
  for (std::int64_t at = 0; at < kHeight;) {
    std::int64_t bytes = draw.in(32, 108);
    if (kHeight - at - bytes < 32) bytes = kHeight - at;
    for (std::int64_t time = 0; time < end;) {
      std::int64_t life = draw.in(kLife / 2, 3 * kLife / 2);
      if (end - time - life < kLife / 2) life = end - time;
      if (bytes > 64 && draw.chance(40)) {
        const std::int64_t part = draw.in(32, bytes - 32);
        const std::int64_t middle = time + draw.in(life / 3, life);
        items.push_back({time, time + life, kUnit * part});
        if (middle > time) items.push_back({time, middle, kUnit * (bytes - part)});
        if (middle < time + life) items.push_back({middle, time + life, kUnit * (bytes - part)});
      } else {
        items.push_back({time, time + life, kUnit * bytes});
      }
      time += life;
    }
    at += bytes;
  }
  return items;
}

Items made(LayoutKind kind, std::size_t count, Draws& draw) {
  switch (kind) {
    case LayoutKind::kSomas: return somas(count, draw);
    case LayoutKind::kLifetimes: return lifetimes(count, draw);
    case LayoutKind::kNested: return nested(count, draw);
    case LayoutKind::kShortLong: return short_long(count, draw);
    case LayoutKind::kPeriodic: return periodic(count, draw);
    case LayoutKind::kSlivers: return slivers(count, draw);
    case LayoutKind::kRandom: return uniform(count, draw);
    case LayoutKind::kPower: return power(count, draw);
    case LayoutKind::kTiled: return tiled(count, draw);
    case LayoutKind::kCut: break;
  }
  Items items;
  const auto side = static_cast<std::int64_t>(count) * 4 + 8;
  cut(draw, {0, side, side * 16}, count, items);
  return items;
}

}  // namespace

std::vector<LayoutItem> layout_of_kind(LayoutKind kind, std::size_t count, std::uint64_t seed) {
  Draws draw(seed * 10 + static_cast<std::uint64_t>(kind));
  Items items = made(kind, count, draw);
  for (std::size_t i = items.size(); i > 1; --i)
    std::swap(items[i - 1], items[static_cast<std::size_t>(draw.in(0, static_cast<std::int64_t>(i) - 1))]);
  return items;
}

}  // namespace stowage::rivals
