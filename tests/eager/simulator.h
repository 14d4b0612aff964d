// Runs a made-up training program under a Keeper: ops take their time, two lanes copy, memory is counted, every rule of
// the interface is checked. The clock knows nothing of the machine, so that results repeat.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "eager/programs.h"
#include "stowage/eager.h"

namespace stowage::testing {

struct SimulationResult {
  bool feasible = true;
  std::string why;     // not
  std::string broken;  // a rule that was broken; empty when none
  std::int64_t compute_ns = 0, total_ns = 0, stall_ns = 0, recompute_ns = 0, peak_bytes = 0;
  // The same of the last third of the iterations, when all repeats.
  std::int64_t late_compute_ns = 0, late_total_ns = 0, late_stall_ns = 0;
  eager::Counters counters;
  std::size_t values_left = 0;
  [[nodiscard]] double overhead() const {
    return static_cast<double>(late_total_ns - late_compute_ns) / static_cast<double>(late_compute_ns);
  }
};

class Simulator {
 public:
  Simulator(const Program& program, const eager::Options& options);
  SimulationResult run();

 private:
  using ValueId = eager::ValueId;
  struct Infeasible {
    const char* why;
  };
  struct Live {
    ValueId id;
    const ProgramOp* op = nullptr;  // that makes it; null: nothing does
    std::vector<ValueId> parents;
    std::vector<ValueId> children;  // whose recipes read it
    bool dead = false;
    std::int64_t copied_at_ns = -1, fetched_at_ns = -1;  // ends of copies on their way
  };

  void run_op(const ProgramOp& op);
  ValueId make(std::int64_t bytes);
  void place(std::int64_t bytes);
  bool cancel_fetch();
  void release(const eager::Victim& victim);
  void bring(ValueId id, int depth);
  void recompute(ValueId id, int depth);
  void take_advice();
  void finish_copies();
  void die(int program_value);
  [[nodiscard]] bool needed(ValueId id, std::set<ValueId>& seen) const;
  void lose_children(ValueId id);
  void unlink(ValueId id);
  void forget_if_unneeded(ValueId id);
  void rule(bool kept, const std::string& text);
  [[nodiscard]] std::int64_t copy_ns(std::int64_t bytes) const;

  const Program& program_;
  eager::Options options_;
  eager::ValueTable table_;
  eager::Keeper keeper_{table_};
  SimulationResult result_;
  std::unordered_map<int, ValueId> now_;         // program value -> row
  std::unordered_map<std::int32_t, Live> live_;  // by row
  std::int64_t resident_ = 0, time_ns_ = 0, out_free_ns_ = 0, in_free_ns_ = 0;
  int work_ = 0;
};

}  // namespace stowage::testing
