#include "budget/cover.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "base/capped.h"
#include "base/random.h"
#include "budget/restore.h"

namespace stowage::budget {
namespace {

constexpr std::size_t kMostCritical = 256;
constexpr std::int64_t kPatience = 40;  // rounds that do not lower the overload
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

// The positions that are over, thinned out to local maxima.
struct Overload {
  std::vector<std::int32_t> at;
  std::vector<std::int64_t> bytes;  // still over

  Overload(const Ledger& ledger, std::int64_t capacity) {
    std::vector<std::int64_t> live(static_cast<std::size_t>(ledger.size()) + 2, 0);
    for (std::int32_t i = 0; i < ledger.size(); ++i) live[i + 1] = ledger.live().at(i);
    std::vector<std::int32_t> peaks;
    for (std::int32_t i = 0; i < ledger.size(); ++i)
      if (live[i + 1] > capacity && live[i + 1] >= live[i] && live[i + 1] > live[i + 2]) peaks.push_back(i);
    const std::size_t bucket = (peaks.size() + kMostCritical - 1) / kMostCritical;
    for (std::size_t i = 0; i < peaks.size(); i += bucket) {
      std::int32_t top = peaks[i];
      for (std::size_t j = i + 1; j < std::min(i + bucket, peaks.size()); ++j)
        if (live[peaks[j] + 1] > live[top + 1]) top = peaks[j];
      at.push_back(top);
      bytes.push_back(live[top + 1] - capacity);
    }
  }
  [[nodiscard]] std::size_t index(std::int32_t position) const {
    return static_cast<std::size_t>(std::lower_bound(at.begin(), at.end(), position) - at.begin());
  }
  // Over positions [from, to)
  [[nodiscard]] std::int64_t help(std::int32_t from, std::int32_t to, std::int64_t most) const {
    std::int64_t sum = 0;
    for (std::size_t i = index(from); i < at.size() && at[i] < to; ++i) sum += std::min(bytes[i], most);
    return sum;
  }
  void relieve(std::int32_t from, std::int32_t to, std::int64_t by) {
    for (std::size_t i = index(from); i < at.size() && at[i] < to; ++i)
      bytes[i] = std::max<std::int64_t>(0, bytes[i] - by);
  }
  [[nodiscard]] std::int32_t worst() const { return at[std::max_element(bytes.begin(), bytes.end()) - bytes.begin()]; }
};

struct Candidate {
  double score = 0;
  Gap gap;
  Move move;
  std::int32_t from = 0, to = 0;  // positions it helps
  double price = 0;
  double luck = 1;
  std::int32_t at = -1;        // of a swap: where the buffer is to be away at least
  std::size_t lanes_seen = 0;  // of a swap: copies on the lanes when it was priced
};

class Round {
 public:
  Round(const Recipes& recipes, Sequence& sequence, std::int64_t capacity, Link link, const CoverRule& rule,
        std::int64_t round, std::int64_t& again_ns, std::int64_t& latest_ns)
      : recipes_(recipes),
        sequence_(sequence),
        ledger_(recipes, sequence),
        capacity_(capacity),
        rule_(rule),
        lanes_(ledger_, link),
        restorer_(ledger_, rule.keep_inputs ? kUnlimited : capacity),
        random_(rule.seed * 1'000'003 + static_cast<std::uint64_t>(round)),
        again_ns_(again_ns),
        latest_ns_(latest_ns) {}

  [[nodiscard]] bool fits() const { return ledger_.live().max() <= capacity_; }
  // Bytes over the capacity, summed over the positions.
  [[nodiscard]] std::int64_t overload() const {
    std::int64_t sum = 0;
    for (std::int32_t i = 0; i < ledger_.size(); ++i)
      sum = capped_sum(sum, std::max<std::int64_t>(0, ledger_.live().at(i) - capacity_));
    return sum;
  }

  // False when no move helps.
  bool step(std::int64_t& work) {
    Overload over(ledger_, capacity_);
    work -= 100LL * ledger_.size();
    collect(over, work);
    return choose(over);
  }

 private:
  void collect(const Overload& over, std::int64_t& work) {
    std::vector<Gap> gaps;
    const std::int32_t worst = over.worst();
    for (std::int32_t b = 0; b < recipes_.buffers; ++b) {
      if (recipes_.bytes[b] == 0 || ledger_.events(b).empty()) continue;
      ledger_.gaps(b, gaps);
      for (const Gap& gap : gaps) {
        if (gap.swap >= 0) {
          consider_widening(gap, over, worst);
          continue;
        }
        const bool taken = ledger_.gain(gap.from, b) > 0;  // dropped, a result could reuse it at once
        if (gap.to - gap.from < (taken ? 1 : 2)) continue;
        const std::size_t first = over.index(gap.from + (taken ? 0 : 1));
        if (first == over.at.size() || over.at[first] >= gap.to) continue;
        if (work <= 0) return;
        const std::int64_t before = restorer_.looked();
        consider(gap, taken, over, worst);
        work -= 1500 + 500 * (restorer_.looked() - before);
      }
    }
  }

  void consider(const Gap& gap, bool taken, const Overload& over, std::int32_t worst) {
    const double luck = rule_.noise == 0 ? 1 : 1 + rule_.noise * (random_.unit() * 2 - 1);
    if (rule_.recompute)
      if (auto move = restorer_.drop(gap))
        add({.gap = gap, .move = std::move(*move), .from = gap.from + (taken ? 0 : 1), .to = gap.to, .luck = luck},
            over);
    if (!rule_.swap) return;
    Candidate swap{.gap = gap, .move = {}, .luck = luck};
    bool reaches = false;
    if (time(swap)) {
      reaches = swap.from <= worst && worst < swap.to;
      add(swap, over);
    }
    swap.at = worst;
    if (!reaches && gap.from < worst && gap.to > worst && time(swap)) add(std::move(swap), over);
  }

  // Away for longer, where it would be late.
  void consider_widening(const Gap& gap, const Overload& over, std::int32_t worst) {
    if (!rule_.swap) return;
    std::optional<Move> move = lanes_.widen(gap, worst);
    if (!move) return;
    const std::int32_t from = ledger_.position(move->swap->out_by), to = ledger_.position(move->swap->in_from);
    const bool earlier = worst < gap.gone;
    add({.gap = gap, .move = std::move(*move), .from = earlier ? from : gap.back, .to = earlier ? gap.gone : to}, over);
  }

  // Puts a swap where the lanes are free now. False: there is no such place.
  bool time(Candidate& c) const {
    std::optional<Move> move = lanes_.swap(c.gap, c.at);
    if (!move) return false;
    c.move = std::move(*move);
    c.from = ledger_.position(c.move.swap->out_by);
    c.to = ledger_.position(c.move.swap->in_from);
    c.lanes_seen = copies_;
    return true;
  }

  // False when it is of no help.
  bool price(Candidate& c, const Overload& over) const {
    const std::int64_t bytes = recipes_.bytes[c.gap.buffer];
    const std::int64_t help = over.help(c.from, c.to, bytes);
    if (help == 0) return false;
    c.price = static_cast<double>(c.move.cost) * c.luck + 1 + 1e-6 * static_cast<double>(bytes) +
              static_cast<double>(c.move.runs.size());
    if (c.move.swap && c.move.widens < 0)
      c.price += rule_.lane_price * static_cast<double>(bytes) * lanes_.ns_per_byte();
    if (c.move.overload > 0)
      c.price *=
          c.move.overload >= help ? 1e6 : static_cast<double>(help) / static_cast<double>(help - c.move.overload);
    c.score = static_cast<double>(help) / c.price;
    return true;
  }
  void add(Candidate c, const Overload& over) {
    if (price(c, over)) found_.push_back(std::move(c));
  }

  bool choose(Overload& over) {
    const std::size_t most =
        rule_.batch > 0 ? static_cast<std::size_t>(rule_.batch) : 1 + static_cast<std::size_t>(recipes_.ops) / 100;
    const auto less = [&](std::size_t a, std::size_t b) {
      return found_[a].score != found_[b].score ? found_[a].score < found_[b].score : a > b;
    };
    std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(less)> heap(less);
    for (std::size_t i = 0; i < found_.size(); ++i) heap.push(i);
    std::vector<char> touched(recipes_.buffers, 0);
    std::vector<Insertion> insertions;
    std::vector<char> removed(sequence_.op.size(), 0);
    std::size_t taken = 0;
    while (!heap.empty() && taken < most) {
      const std::size_t i = heap.top();
      heap.pop();
      Candidate& c = found_[i];
      if (c.move.swap && c.move.widens < 0 && c.lanes_seen != copies_) {  // others have taken its time on the lanes
        const double before = c.score;
        if (!time(c) || !price(c, over)) continue;
        if (c.score < before * 0.999) {
          heap.push(i);
          continue;
        }
      }
      const double score = static_cast<double>(over.help(c.from, c.to, recipes_.bytes[c.gap.buffer])) / c.price;
      if (score <= 0) continue;
      if (score < c.score * 0.999) {
        c.score = score;
        heap.push(i);
        continue;
      }
      if (conflicts(c.move, touched)) continue;
      over.relieve(c.from, c.to, recipes_.bytes[c.gap.buffer]);
      apply(c, insertions, removed);
      ++taken;
    }
    if (taken == 0) return false;
    edit(sequence_, insertions, removed);
    return true;
  }

  // One changes what the other relies on, or both change it. If not, `move` takes what it touches.
  static bool conflicts(const Move& move, std::vector<char>& touched) {
    constexpr char kRelied = 1, kChanged = 2;
    for (std::size_t i = 0; i < move.buffers.size(); ++i)
      if (touched[move.buffers[i]] >= (move.changes[i] != 0 ? kRelied : kChanged)) return true;
    for (std::size_t i = 0; i < move.buffers.size(); ++i)
      touched[move.buffers[i]] = std::max(touched[move.buffers[i]], move.changes[i] != 0 ? kChanged : kRelied);
    return false;
  }

  void apply(const Candidate& c, std::vector<Insertion>& insertions, std::vector<char>& removed) {
    if (c.move.widens >= 0) {
      latest_ns_ = std::max(latest_ns_, c.move.cost);
      sequence_.swaps[c.move.widens] = *c.move.swap;
      return;
    }
    if (c.move.swap) {
      latest_ns_ = std::max(latest_ns_, c.move.cost);
      lanes_.add(c.move, c.gap);
      ++copies_;
      sequence_.swaps.push_back(*c.move.swap);
      return;
    }
    again_ns_ = capped_sum(again_ns_, c.move.cost);
    for (const std::int32_t op : c.move.runs) insertions.push_back({c.move.at, sequence_.make(op)});
    for (const std::int32_t at : c.move.remove) removed[ledger_.node(at)] = 1;
  }

  const Recipes& recipes_;
  Sequence& sequence_;
  Ledger ledger_;
  std::int64_t capacity_;
  const CoverRule& rule_;
  Lanes lanes_;
  Restorer restorer_;
  Random random_;
  std::vector<Candidate> found_;
  std::size_t copies_ = 0;   // that this round has put on the lanes
  std::int64_t& again_ns_;   // cost of the runs again
  std::int64_t& latest_ns_;  // by which the latest copy is late
};

}  // namespace

bool cover(const Recipes& recipes, Sequence& sequence, std::int64_t capacity, Link link, const CoverRule& rule,
           std::int64_t& work) {
  const std::size_t longest = 4 * static_cast<std::size_t>(recipes.ops) + 100;
  const std::int64_t rounds = 200 + 2LL * recipes.ops;
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), since = 0, again_ns = 0, latest_ns = 0;
  for (std::int64_t round = 0; round < rounds && since < kPatience; ++round, ++since) {
    Round now(recipes, sequence, capacity, link, rule, round, again_ns, latest_ns);
    if (now.fits()) return true;
    if (now.overload() < least) {
      least = now.overload();
      since = 0;
    }
    if (capped_sum(again_ns, latest_ns) > rule.most_cost) return false;
    if (work <= 0 || sequence.line.size() + sequence.swaps.size() > longest || !now.step(work)) return false;
  }
  return false;
}

}  // namespace stowage::budget
