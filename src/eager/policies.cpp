// The policies by name: most are one filter with DELTA's director and prefetch.
#include <array>
#include <string>
#include <utility>

#include "eager/capuchin.h"
#include "eager/cost_aware.h"
#include "eager/delta_director.h"
#include "eager/delta_filter.h"
#include "eager/delta_prefetch.h"
#include "eager/dtr.h"
#include "eager/lru.h"
#include "eager/policy.h"
#include "eager/random.h"
#include "eager/size.h"
#include "stowage/error.h"

namespace stowage::eager {
namespace {

constexpr std::array kNames = {"default", "delta", "dtr", "capuchin", "lru", "size", "random"};

// One part each.
class Composed : public Policy {
 public:
  Composed(std::unique_ptr<Filter> filter, std::unique_ptr<Director> director, std::unique_ptr<Prefetch> prefetch)
      : filter_(std::move(filter)), director_(std::move(director)), prefetch_(std::move(prefetch)) {}

  void entered(ValueId id) override { filter_->entered(id); }
  void left(ValueId id) override { filter_->left(id); }
  void accessed(ValueId id) override { filter_->accessed(id); }
  void recipe_changed(ValueId id) override { filter_->recipe_changed(id); }
  void released(ValueId id, How how) override {
    filter_->released(id, how);
    if (how == How::kSwap) prefetch_->swapped(id);
  }
  void restored(ValueId id) override {
    filter_->restored(id);
    prefetch_->back(id);
  }
  void died(ValueId id) override {
    filter_->died(id);
    prefetch_->back(id);
  }
  void forgotten(ValueId id) override {
    filter_->forgotten(id);
    prefetch_->back(id);
  }
  std::optional<ValueId> pick(bool last_resort) override { return filter_->pick(last_resort); }
  How choose(ValueId id) override { return director_->choose(id); }
  Advice advise(std::int64_t room_bytes) override {
    const auto next = prefetch_->next(room_bytes);
    return next ? Advice{Advice::Kind::kFetch, *next, How::kSwap} : Advice{};
  }

 private:
  std::unique_ptr<Filter> filter_;
  std::unique_ptr<Director> director_;
  std::unique_ptr<Prefetch> prefetch_;
};

}  // namespace

std::span<const char* const> policy_names() { return kNames; }

std::unique_ptr<Policy> make_policy(ValueTable& table, AccessHistory& history) {
  const std::string& name = table.options().policy;
  if (name == "default") return std::make_unique<CostAware>(table, history);
  if (name == "capuchin") return std::make_unique<Capuchin>(table, history);
  const auto with = [&](std::unique_ptr<Filter> filter, std::unique_ptr<Director> director) {
    return std::make_unique<Composed>(std::move(filter), std::move(director),
                                      std::make_unique<DeltaPrefetch>(table, history));
  };
  if (name == "dtr") return with(std::make_unique<DtrFilter>(table), std::make_unique<DtrDirector>());
  const auto delta = [&] { return std::make_unique<DeltaDirector>(table); };
  if (name == "delta") return with(std::make_unique<DeltaFilter>(table), delta());
  if (name == "lru") return with(std::make_unique<LruFilter>(table), delta());
  if (name == "size") return with(std::make_unique<SizeFilter>(table), delta());
  if (name == "random") return with(std::make_unique<RandomFilter>(table), delta());
  std::string known;
  for (const char* n : kNames) known += (known.empty() ? "" : ", ") + std::string(n);
  throw Error("no eviction policy is named \"" + name + "\": there are " + known);
}

}  // namespace stowage::eager
