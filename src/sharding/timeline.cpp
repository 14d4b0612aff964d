#include "sharding/timeline.h"

#include <algorithm>
#include <utility>

namespace stowage {
namespace {

constexpr std::int64_t kBefore = -1;  // the step
// Kernels between what makes a tensor and what needs it: where there are fewer, it is not collected
constexpr std::int32_t kSoon = 4;

std::int64_t bytes_of(const std::vector<Bringing>& all) {
  std::int64_t sum = 0;
  for (const Bringing& each : all) sum += each.bytes;
  return sum;
}

bool only_views(const KernelTurn& turn) { return turn.still && turn.before.empty() && turn.after.empty(); }

struct Copy {
  std::size_t turn = 0, at = 0;  // which of its `before`
};

// What is issued before each turn, as buckets.
class Ahead {
 public:
  Ahead(const std::vector<KernelTurn>& turns, const std::vector<std::size_t>& roots, std::int64_t bucket)
      : issued(turns.size()), beside(turns.size(), 0), turns_(turns), bucket_(bucket), kernels_(1, 0) {
    for (const KernelTurn& turn : turns) kernels_.push_back(kernels_.back() + (turn.still ? 0 : 1));
    std::vector<std::int64_t> origin(roots.size(), kBefore), changed(roots.size(), kBefore);
    const auto since = [&](std::size_t t) { return std::max(origin[t], changed[roots[t]]); };
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const KernelTurn& turn = turns[i];
      for (std::size_t b = 0; b < turn.before.size(); ++b) add({i, b}, since(turn.before[b].tensor));
      std::int64_t made = only_views(turn) ? kBefore : static_cast<std::int64_t>(i);
      if (only_views(turn))
        for (const std::size_t t : turn.reads) made = std::max(made, since(t));
      for (const std::size_t t : turn.makes) origin[t] = made;
      for (const std::size_t t : turn.writes) changed[roots[t]] = static_cast<std::int64_t>(i);
    }
    close();
    for (auto& buckets : issued)
      std::stable_sort(buckets.begin(), buckets.end(),
                       [](const auto& a, const auto& b) { return a.front().turn < b.front().turn; });
  }

  std::vector<std::vector<std::vector<Copy>>> issued;  // per turn
  std::vector<std::int64_t> beside;

 private:
  // Alone, into the bucket that is open, or into the next one.
  void add(Copy copy, std::int64_t since) {
    const std::int64_t bytes = turns_[copy.turn].before[copy.at].bytes, turn = static_cast<std::int64_t>(copy.turn);
    const auto there = static_cast<std::size_t>(std::min(since + 1, turn));
    if (bytes > bucket_) return issue({copy}, copy.turn);
    if (kernels_[copy.turn] - kernels_[there] < kSoon) return issue({copy}, there);
    if (open_.empty() || since + 1 > first_ || held_ + bytes > bucket_) {
      close();
      issue_ = std::exchange(first_, turn);
    }
    issue_ = std::max(issue_, since + 1);
    held_ += bytes;
    open_.push_back(copy);
  }

  void close() {
    if (!open_.empty()) issue(std::exchange(open_, {}), static_cast<std::size_t>(issue_));
    held_ = 0;
  }

  void issue(std::vector<Copy> copies, std::size_t at) {
    for (const Copy& copy : copies)
      for (std::size_t i = at; i < copy.turn; ++i) beside[i] += turns_[copy.turn].before[copy.at].bytes;
    issued[at].push_back(std::move(copies));
  }

  const std::vector<KernelTurn>& turns_;
  std::int64_t bucket_;
  std::vector<std::int32_t> kernels_;  // before each turn
  std::vector<Copy> open_;
  std::int64_t held_ = 0, first_ = 0, issue_ = 0;  // of the open bucket: its bytes, first turn, where it is issued
};

// Which results are needed so soon that they are not collected, and until when they are under way.
class Needs {
 public:
  Needs(const std::vector<KernelTurn>& turns, std::size_t tensors) : until(turns.size()) {
    std::vector<std::int32_t> kernels(1, 0);
    for (const KernelTurn& turn : turns) kernels.push_back(kernels.back() + (turn.still ? 0 : 1));
    std::vector<std::size_t> first(tensors, turns.size());  // turn that needs it, of those that have been looked at
    for (std::size_t i = turns.size(); i-- > 0;) {
      const KernelTurn& turn = turns[i];
      for (const Bringing& what : turn.after) {
        const std::size_t need = first[what.tensor];
        const bool soon = need < turns.size() && kernels[need] - kernels[i + 1] < kSoon;
        until[i].push_back(soon ? need : 0);
      }
      std::size_t passed_on = turns.size();
      for (const std::size_t t : turn.makes) passed_on = std::min(passed_on, first[t]);
      const std::size_t need = only_views(turn) ? passed_on : i;
      for (const auto* all : {&turn.reads, &turn.writes})
        for (const std::size_t t : *all) first[t] = std::min(first[t], need);
      for (const Bringing& what : turn.before) first[what.tensor] = i;
    }
  }

  // Per turn, of each that it leaves: the turn that needs it; 0: collected
  std::vector<std::vector<std::size_t>> until;
};

class Clock {
 public:
  Clock(const std::vector<KernelTurn>& turns, const std::vector<std::size_t>& roots, std::size_t axes,
        std::int64_t bucket)
      : turns_(turns),
        roots_(roots),
        bucket_(bucket),
        ahead_(turns, roots, bucket),
        needs_(turns, roots.size()),
        free_(axes, 0),
        there_(roots.size(), 0),
        changed_(roots.size(), 0),
        collected_(roots.size(), 0),
        arrived_(turns.size(), 0) {
    line_.links.assign(axes, 0);
    line_.beside = ahead_.beside;
  }

  OverlapTimeline run() {
    for (std::size_t i = 0; i < turns_.size(); ++i) take(i);
    launch();
    line_.ns = now_;
    for (const double at : free_) line_.ns = std::max(line_.ns, at);
    return std::move(line_);
  }

 private:
  struct Left {  // in the open bucket
    const Bringing* what = nullptr;
    bool is_new = false;
  };

  [[nodiscard]] double has(std::size_t tensor) const { return std::max(there_[tensor], changed_[roots_[tensor]]); }

  // All of a bucket: hop by hop, those on one axis as one collective.
  double carry(const std::vector<const Bringing*>& bucket, double at) {
    std::vector<double> latency(free_.size()), bytes(free_.size());
    for (std::size_t hop = 0, more = 1; more != 0; ++hop) {
      std::fill(latency.begin(), latency.end(), -1);
      std::fill(bytes.begin(), bytes.end(), 0);
      more = 0;
      for (const Bringing* what : bucket) {
        if (hop >= what->legs.size()) continue;
        const Leg& leg = what->legs[hop];
        latency[leg.axis] = std::max(latency[leg.axis], leg.latency_ns);
        bytes[leg.axis] += leg.bytes_ns;
        ++more;
      }
      double end = at;
      for (std::size_t a = 0; a < free_.size(); ++a) {
        if (latency[a] < 0) continue;
        const double ns = latency[a] + bytes[a];
        free_[a] = std::max(at, free_[a]) + ns;
        line_.links[a] += ns;
        end = std::max(end, free_[a]);
      }
      at = end;
    }
    return at;
  }

  void take(std::size_t i) {
    const KernelTurn& turn = turns_[i];
    if (needs_collected(i)) launch();
    for (const std::vector<Copy>& bucket : ahead_.issued[i]) issue(bucket);
    line_.beside[i] += under_way_ + held_;
    double ready = arrived_[i];
    for (const std::size_t t : turn.reads) ready = std::max(ready, has(t));
    if (!turn.still) now_ = std::max(now_, ready);
    line_.waited.push_back(turn.still ? 0 : now_ - ended_);
    if (!turn.still) ended_ = now_ += turn.ns;
    const double end = turn.still ? ready : now_;
    for (const std::size_t t : turn.makes) there_[t] = end;
    for (const std::size_t t : turn.writes) changed_[roots_[t]] = end;
    if (only_views(turn) &&
        std::any_of(turn.reads.begin(), turn.reads.end(), [&](std::size_t t) { return is_collected(t); }))
      collect(turn.makes);
    if (!turn.after.empty()) leave(i, end);
  }

  void issue(const std::vector<Copy>& bucket) {
    std::vector<const Bringing*> all;
    double at = now_;
    for (const Copy& copy : bucket) {
      all.push_back(&turns_[copy.turn].before[copy.at]);
      at = std::max(at, has(all.back()->tensor));
    }
    at = carry(all, at);
    for (const Copy& copy : bucket) arrived_[copy.turn] = std::max(arrived_[copy.turn], at);
  }

  // A view of what is in the open bucket is in it, too, and needs nothing.
  [[nodiscard]] bool needs_collected(std::size_t i) const {
    const KernelTurn& turn = turns_[i];
    const auto in = [&](std::size_t t) { return is_collected(t); };
    if (!only_views(turn) && (std::any_of(turn.reads.begin(), turn.reads.end(), in) ||
                              std::any_of(turn.writes.begin(), turn.writes.end(), in)))
      return true;
    for (const std::vector<Copy>& bucket : ahead_.issued[i])
      for (const Copy& copy : bucket)
        if (in(turns_[copy.turn].before[copy.at].tensor)) return true;
    return false;
  }

  [[nodiscard]] bool is_collected(std::size_t t) const { return collected_[t] != 0 || collected_[roots_[t]] != 0; }

  void collect(const std::vector<std::size_t>& tensors) {
    for (const std::size_t t : tensors) {
      collected_[t] = 1;
      marked_.push_back(t);
    }
  }

  void leave(std::size_t i, double end) {
    const KernelTurn& turn = turns_[i];
    std::vector<Left> later;
    std::int64_t bytes = 0;
    for (std::size_t a = 0; a < turn.after.size(); ++a) {
      const Bringing& what = turn.after[a];
      const bool is_new = std::find(turn.makes.begin(), turn.makes.end(), what.tensor) != turn.makes.end();
      const std::size_t until = needs_.until[i][a];
      if (until == 0) {
        later.push_back({&what, is_new});
        bytes += what.bytes;
        continue;
      }
      const double at = carry({&what}, std::max(end, now_));
      (is_new ? there_[what.tensor] : changed_[roots_[what.tensor]]) = at;
      if (what.bytes > bucket_) now_ = std::max(now_, at);
      for (std::size_t t = i + 1; t < until && what.bytes <= bucket_; ++t) line_.beside[t] += what.bytes;
    }
    if (later.empty()) return;
    if (held_ > 0 && held_ + bytes > bucket_) launch();
    for (const Left& left : later) {
      left_.push_back(left);
      collect({left.is_new ? left.what->tensor : roots_[left.what->tensor]});
    }
    held_ += bytes;
    if (held_ > bucket_) now_ = std::max(now_, launch());  // alone
  }

  // The open bucket; the one before has arrived by then. When this one arrives.
  double launch() {
    if (left_.empty()) return now_;
    now_ = std::max(now_, landed_);
    std::vector<const Bringing*> all;
    double at = now_;
    for (const Left& left : left_) {
      all.push_back(left.what);
      at = std::max(at, has(left.what->tensor));
    }
    landed_ = carry(all, at);
    for (const std::size_t t : marked_) {
      collected_[t] = 0;
      there_[t] = std::max(there_[t], landed_);  // views as well
    }
    for (const Left& left : left_)
      if (!left.is_new) changed_[roots_[left.what->tensor]] = landed_;
    under_way_ = held_ > bucket_ ? 0 : held_;
    held_ = 0;
    left_.clear();
    marked_.clear();
    return landed_;
  }

  const std::vector<KernelTurn>& turns_;
  const std::vector<std::size_t>& roots_;
  std::int64_t bucket_;
  Ahead ahead_;
  Needs needs_;
  std::vector<double> free_;             // per axis: its link is, from then on
  std::vector<double> there_, changed_;  // per tensor made, per root changed: when
  std::vector<char> collected_;          // per tensor: it is in the open bucket
  std::vector<std::size_t> marked_;      // those
  std::vector<double> arrived_;          // per turn: all that is brought for it
  std::vector<Left> left_;               // the open bucket of what is brought away
  std::int64_t held_ = 0;                // its bytes
  std::int64_t under_way_ = 0;           // of the one launched before
  double landed_ = 0;                    // when that arrives
  double now_ = 0;                       // the latest kernel has ended, and what it waits for has come
  double ended_ = 0;                     // the latest kernel has ended
  OverlapTimeline line_;
};

}  // namespace

OverlapTimeline make_timeline(const std::vector<KernelTurn>& turns, const std::vector<std::size_t>& roots,
                              std::size_t axes, std::int64_t bucket) {
  return Clock(turns, roots, axes, bucket).run();
}

std::int64_t largest_copies(const std::vector<KernelTurn>& turns) {
  std::int64_t most = 0;
  for (const KernelTurn& turn : turns) most = std::max({most, bytes_of(turn.before), bytes_of(turn.after)});
  return most;
}

}  // namespace stowage
