// The table of values of an eager budget and its keeper, driven by any sequence of notes that their headers allow: the
// bytes and lists of the table are those of a naive twin, what the keeper picks may be let go, what it advises can be
// done, and once all is forgotten nothing is left.
#include <algorithm>
#include <memory>
#include <vector>

#include "fuzz/byte_source.h"
#include "fuzz/target.h"
#include "stowage/eager.h"

namespace stowage::fuzz {
namespace {

using eager::HostCopy;
using eager::How;
using eager::Release;
using eager::Residence;
using eager::ValueId;

constexpr std::array<std::int64_t, 6> kUnits = {1, 100, 4096, 1 << 20, std::int64_t{1} << 32, 0};
constexpr std::array<double, 6> kLinks = {12, 1, 0.01, 1e-9, 1e6, 1e300};
constexpr std::array<Release, 3> kReleases = {Release::kBoth, Release::kDropOnly, Release::kSwapOnly};
constexpr std::array<std::int64_t, 4> kTimes = {1'000, 0, 1'000'000'000, 17};

// What the twin knows of a value: the keeper's row, seen from outside.
struct Twin {
  ValueId id;
  std::int64_t bytes = 0;
  Residence residence = Residence::kResident;
  HostCopy copy = HostCopy::kNone;
  bool recipe = false, evictable = true, alive = true;
  int pins = 0, soft_pins = 0, children = 0;
  std::vector<ValueId> parents;

  [[nodiscard]] bool counted() const { return residence == Residence::kResident || residence == Residence::kFetching; }
};

eager::Options decode(ByteSource& bytes) {
  eager::Options options;
  const auto names = eager::policy_names();
  options.policy = names[static_cast<std::size_t>(bytes.draw(0, std::ssize(names) - 1))];
  options.release = bytes.pick(kReleases);
  options.prefetch = !bytes.chance(20);
  options.link_bytes_per_ns = bytes.pick(kLinks);
  options.link_latency_ns = bytes.pick(kTimes);
  options.limit_bytes = bytes.draw(0, 200) * bytes.pick(kUnits);
  options.seed = static_cast<std::uint64_t>(bytes.draw(0, 3));
  options.most_fetches = static_cast<int>(bytes.draw(0, 5));
  return options;
}

class Session {
 public:
  explicit Session(ByteSource& bytes)
      : bytes_(bytes), options_(decode(bytes)), unit_(bytes.pick(kUnits)), table_(options_) {}

  void run() {
    for (int i = 0; i < 400 && !bytes_.empty(); ++i) {
      one();
      compare();
    }
    finish_op();
    while (!values_.empty()) forget(values_.size() - 1);
    require(table_.in_use() == 0 && table_.resident_bytes() == 0, "once all is forgotten, nothing is left");
    require(!keeper_.victim(), "of nothing there is no victim");
  }

 private:
  void one() {
    switch (bytes_.draw(0, 17)) {
      case 0:
      case 1: return begin_op();
      case 2:
      case 3: return finish_op();
      case 4: return create();
      case 5:
      case 6: return release();
      case 7:
      case 8: return restore();
      case 9: return advise();
      case 10: return settle_copies();
      case 11: return with([&](Twin& v) { pin(v, true); });
      case 12: return with([&](Twin& v) { pin(v, false); });
      case 13: return with([&](Twin& v) { die(v); });
      case 14: return with([&](Twin& v) { lose_recipe(v); });
      case 15: return with([&](Twin& v) { toggle_evictable(v); });
      case 16: return lose_copy();
      default: return with([&](Twin& v) { forget(static_cast<std::size_t>(&v - values_.data())); });
    }
  }

  template <class Do>
  void with(Do act) {
    if (!values_.empty()) act(values_[static_cast<std::size_t>(bytes_.draw(0, std::ssize(values_) - 1))]);
  }

  Twin& twin(ValueId id) { return *std::ranges::find(values_, id, &Twin::id); }

  // Every value that is there is read, but for what the op before has not ended.
  void begin_op() {
    finish_op();
    for (auto i = values_.empty() ? 0 : bytes_.draw(0, 3); i > 0; --i) {
      const Twin& v = values_[static_cast<std::size_t>(bytes_.draw(0, std::ssize(values_) - 1))];
      if (v.alive && v.residence == Residence::kResident) reads_.push_back(v.id);
    }
    keeper_.op_begins(static_cast<std::uint64_t>(bytes_.draw(0, 5)), reads_);
    for (const ValueId id : reads_) {
      table_.pin(id);
      ++twin(id).pins;
    }
    in_op_ = true;
  }

  void create() {
    const std::int64_t size = bytes_.draw(0, 40) * unit_;
    const bool evictable = !bytes_.chance(10);
    Twin v;
    v.id = table_.created(size, evictable);
    v.bytes = size;
    v.evictable = evictable;
    require(std::ranges::find(values_, v.id, &Twin::id) == values_.end(), "a row has one value");
    if (in_op_) {
      made_.push_back(v.id);
      if (bytes_.chance(60)) {
        v.recipe = true;
        v.parents = reads_;
        for (const ValueId parent : reads_) ++twin(parent).children;
        table_.recipe(v.id, bytes_.draw(0, 40) * bytes_.pick(kTimes), reads_);
      }
    }
    values_.push_back(std::move(v));
  }

  void finish_op() {
    if (!in_op_) return;
    keeper_.op_ended(bytes_.pick(kTimes), made_);
    for (const ValueId id : reads_) {
      table_.unpin(id);
      --twin(id).pins;
    }
    reads_.clear();
    made_.clear();
    in_op_ = false;
  }

  void release() {
    const auto victim = keeper_.victim();
    if (!victim) {
      for (const Twin& v : values_) require(!may_go(v), "while one may go, there is a victim");
      return;
    }
    Twin& v = twin(victim->value);
    require(may_go(v), "a victim may go");
    judge_how(v, victim->how);
    if (bytes_.chance(80)) let_go(v, victim->how);
  }

  void judge_how(const Twin& v, How how) const {
    require(how == How::kSwap || v.recipe, "only what can be made again is dropped");
    require(how == How::kSwap || v.copy == HostCopy::kNone || options_.release == Release::kDropOnly,
            "what the host has is not dropped");
    require(options_.release != Release::kDropOnly || how == How::kDrop, "no swap where only drops are allowed");
    require(options_.release != Release::kSwapOnly || how == How::kSwap, "no drop where only swaps are allowed");
  }

  [[nodiscard]] bool may_go(const Twin& v) const {
    if (!v.evictable || v.residence != Residence::kResident || v.pins > 0) return false;
    return options_.release != Release::kDropOnly || v.recipe;
  }

  void let_go(Twin& v, How how) {
    table_.released(v.id, how);
    v.residence = how == How::kSwap ? Residence::kSwapped : v.alive ? Residence::kDropped : Residence::kGone;
    if (how == How::kSwap) v.copy = HostCopy::kClean;
  }

  void restore() {
    with([&](Twin& v) {
      const std::int64_t took = bytes_.pick(kTimes);
      if (v.residence == Residence::kFetching) {
        table_.fetch_done(v.id, took);
        v.residence = Residence::kResident;
      } else if (v.copy == HostCopy::kClean && v.residence != Residence::kResident) {
        table_.restored(v.id, How::kSwap, took);
        v.residence = Residence::kResident;
      } else if (v.recipe && (v.residence == Residence::kDropped || v.residence == Residence::kGone)) {
        table_.restored(v.id, How::kDrop, took);
        v.residence = Residence::kResident;
      }
    });
  }

  void advise() {
    for (int i = 0; i < 64; ++i) {
      const std::int64_t room = options_.limit_bytes - table_.resident_bytes();
      const eager::Advice advice = keeper_.advise(room);
      if (advice.kind == eager::Advice::Kind::kNone) return;
      Twin& v = twin(advice.value);
      if (advice.kind == eager::Advice::Kind::kRelease) {
        require(may_go(v), "advised is what may go");
        judge_how(v, advice.how);
        let_go(v, advice.how);
      } else if (advice.kind == eager::Advice::Kind::kCopyOut) {
        require(v.residence == Residence::kResident && v.copy == HostCopy::kNone,
                "copied is what is there and has no copy");
        table_.copy_out_started(v.id);
        v.copy = HostCopy::kOnItsWay;
      } else {
        require(v.residence == Residence::kSwapped && v.copy == HostCopy::kClean, "fetched is what is on the host");
        require(v.bytes <= room, "fetched is what there is room for");
        table_.fetch_started(v.id);
        v.residence = Residence::kFetching;
      }
    }
    require(false, "advice comes to an end");
  }

  void settle_copies() {
    for (Twin& v : values_) {
      if (v.copy == HostCopy::kOnItsWay && bytes_.chance(50)) {
        table_.copy_out_done(v.id);
        v.copy = HostCopy::kClean;
      }
      if (v.residence != Residence::kFetching || !bytes_.chance(50)) continue;
      const bool done = bytes_.chance(50);
      done ? table_.fetch_done(v.id, 0) : table_.fetch_cancelled(v.id);
      v.residence = done ? Residence::kResident : Residence::kSwapped;
    }
  }

  void pin(Twin& v, bool soft) {
    int& pins = soft ? v.soft_pins : outside_pins(v);
    const bool on = pins == 0 || bytes_.chance(30);
    pins += on ? 1 : -1;
    if (soft) return on ? table_.soft_pin(v.id) : table_.soft_unpin(v.id);
    v.pins += on ? 1 : -1;
    on ? table_.pin(v.id) : table_.unpin(v.id);
  }

  int& outside_pins(const Twin& v) {
    if (outside_.size() <= v.id.index()) outside_.resize(v.id.index() + 1);
    return outside_[v.id.index()];
  }

  // The program's storage dies: not while the op runs that reads it.
  void die(Twin& v) {
    if (v.pins > 0) return;
    table_.died(v.id);
    v.alive = false;
    v.residence = Residence::kGone;
  }

  // A dropped value would be lost with it.
  void lose_recipe(Twin& v) {
    if (v.residence == Residence::kDropped) return;
    table_.lost_recipe(v.id);
    v.recipe = false;
    for (const ValueId parent : v.parents) --twin(parent).children;
    v.parents.clear();
  }

  void toggle_evictable(Twin& v) {
    v.evictable = !v.evictable;
    v.evictable ? table_.may_evict(v.id) : table_.never_evict(v.id);
  }

  void lose_copy() {
    with([&](Twin& v) {
      if (v.residence != Residence::kResident) return;
      table_.host_copy_lost(v.id);
      v.copy = HostCopy::kNone;
    });
  }

  // Parents stay known as long as a recipe reads them.
  void forget(std::size_t at) {
    if (values_[at].pins > outside_pins(values_[at])) return;
    const ValueId id = values_[at].id;
    for (Twin& child : values_) {
      if (std::ranges::find(child.parents, id) == child.parents.end()) continue;
      if (child.residence == Residence::kDropped) die_with(child);
      lose_recipe(child);
    }
    Twin& v = values_[at];
    if (v.residence == Residence::kDropped) die_with(v);
    lose_recipe(v);
    for (int& pins = outside_pins(v); pins > 0; --pins) table_.unpin(id);
    for (; v.soft_pins > 0; --v.soft_pins) table_.soft_unpin(id);
    std::erase(made_, id);
    table_.forgotten(id);
    values_.erase(values_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void die_with(Twin& v) {
    table_.died(v.id);
    v.alive = false;
    v.residence = Residence::kGone;
  }

  void compare() const {
    std::int64_t resident = 0, evictable = 0;
    for (const Twin& v : values_) {
      const eager::Row& row = table_[v.id];
      resident += v.counted() ? v.bytes : 0;
      evictable += may_go(v) ? v.bytes : 0;
      require(row.residence == v.residence && row.host_copy == v.copy && row.pins == v.pins,
              "a row is as its notes made it");
      require(row.bytes == v.bytes && row.alive == v.alive && row.recomputable == v.recipe,
              "a row has its value's figures");
      require(table_.chain_ns(v.id) >= 0, "a chain takes time");
    }
    require(table_.in_use() == values_.size(), "a row for each value");
    const auto all = [&](const std::vector<ValueId>& ids, auto is_one) {
      return std::ssize(ids) == std::ranges::count_if(values_, is_one) &&
             std::ranges::all_of(ids, [&](ValueId id) { return is_one(*std::ranges::find(values_, id, &Twin::id)); });
    };
    const auto fetched = [](const Twin& v) { return v.residence == Residence::kFetching; };
    const auto copied = [](const Twin& v) { return v.copy == HostCopy::kOnItsWay; };
    require(all(table_.coming_in(), fetched), "what comes in is what is being fetched");
    require(all(table_.going_out(), copied), "what goes out is what is being copied");
    require(table_.dropped() == std::ranges::count(values_, Residence::kDropped, &Twin::residence),
            "the dropped ones are counted");
    for (const ValueId id : table_.ghosts()) {
      const Twin& v = *std::ranges::find(values_, id, &Twin::id);
      require(!v.alive && v.residence == Residence::kResident, "a ghost is resident without a storage");
    }
    require(table_.resident_bytes() == resident, "resident bytes are those of the values that are there");
    require(table_.evictable_bytes() == evictable, "evictable bytes are those that may go");
  }

  ByteSource& bytes_;
  eager::Options options_;
  std::int64_t unit_;
  eager::ValueTable table_;
  eager::Keeper keeper_{table_};
  std::vector<Twin> values_;
  std::vector<int> outside_;  // pins by row that no op has set
  std::vector<ValueId> reads_, made_;
  bool in_op_ = false;
};

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stowage::fuzz::ByteSource bytes(data, size);
  stowage::fuzz::Session(bytes).run();
  return 0;
}
