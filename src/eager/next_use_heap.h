// Values in order of a key (their next use), in a heap for each class, without taking out what has changed: entries are
// only ever added, and those that no longer tell the truth are dropped when they come to the top.
//
//   put(v, 17) ... put(v, 90)        heap: 90 v · 17 v (stale: stamp 1, v's is 2) · 12 u
//
// put O(log n) worst, O(1) expected; all heaps are rebuilt from their true entries when most are stale, so they hold
// O(members).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "stowage/value_table.h"

namespace stowage::eager {

// `First(a, b)`: key a comes before key b.
template <class First>
class NextUseHeap {
 public:
  struct Entry {
    std::int64_t key = 0;
    ValueId id;
    std::uint32_t stamp = 0;
  };

  // A member is in one class with one key: the last ones put.
  void put(ValueId id, std::int64_t key, std::size_t heap = 0) {
    if (id.index() >= stamps_.size()) stamps_.resize(std::max(id.index() + 1, 2 * stamps_.size()));
    if (heap >= heaps_.size()) heaps_.resize(heap + 1);
    Stamp& s = stamps_[id];
    if (!s.member) ++members_;
    s = {s.stamp + 1, true};
    if (++entries_ > 64 + 4 * members_) rebuild();
    heaps_[heap].push_back({key, id, s.stamp});
    std::push_heap(heaps_[heap].begin(), heaps_[heap].end(), after);
  }

  void erase(ValueId id) {
    if (!holds(id)) return;
    stamps_[id].member = false;
    --members_;
  }

  [[nodiscard]] bool holds(ValueId id) const { return id.index() < stamps_.size() && stamps_[id].member; }
  [[nodiscard]] std::size_t size() const { return members_; }
  [[nodiscard]] std::size_t classes() const { return heaps_.size(); }

  // The first entry of a class, null when there is none. Valid until the next change.
  [[nodiscard]] const Entry* top(std::size_t heap = 0) {
    if (heap >= heaps_.size()) return nullptr;
    while (!heaps_[heap].empty() && !true_entry(heaps_[heap].front())) drop_front(heap);
    return heaps_[heap].empty() ? nullptr : &heaps_[heap].front();
  }

  // Shows the first entries of a class in order, to `visit(entry) -> bool`: go on? They all stay, and nothing may
  // change meanwhile.
  template <class Visit>
  void first_ones(std::size_t heap, Visit visit) {
    aside_.clear();
    while (const Entry* entry = top(heap)) {
      aside_.push_back(*entry);
      const bool go_on = visit(*entry);
      drop_front(heap);
      if (!go_on) break;
    }
    for (const Entry& entry : aside_) {
      heaps_[heap].push_back(entry);
      std::push_heap(heaps_[heap].begin(), heaps_[heap].end(), after);
      ++entries_;
    }
  }

 private:
  struct Stamp {
    std::uint32_t stamp = 0;
    bool member = false;
  };

  static bool after(const Entry& a, const Entry& b) { return First{}(b.key, a.key); }
  [[nodiscard]] bool true_entry(const Entry& e) const {
    const Stamp& s = stamps_[e.id];
    return s.member && s.stamp == e.stamp;
  }
  void drop_front(std::size_t heap) {
    std::pop_heap(heaps_[heap].begin(), heaps_[heap].end(), after);
    heaps_[heap].pop_back();
    --entries_;
  }
  void rebuild() {
    entries_ = 1;  // the one about to come
    for (auto& heap : heaps_) {
      std::erase_if(heap, [this](const Entry& e) { return !true_entry(e); });
      std::make_heap(heap.begin(), heap.end(), after);
      entries_ += heap.size();
    }
  }

  std::vector<std::vector<Entry>> heaps_;
  std::vector<Entry> aside_;
  IdVector<ValueId, Stamp> stamps_;
  std::size_t members_ = 0, entries_ = 0;
};

}  // namespace stowage::eager
