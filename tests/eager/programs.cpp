#include "eager/programs.h"

#include <algorithm>
#include <random>

namespace stowage::testing {
namespace {

// One iteration: per layer three forward ops (large and dear, large and cheap, small), the backward ones in reverse,
// the updates.
class ProgramBuilder {
 public:
  ProgramBuilder(std::uint64_t seed, int layers) : random_(seed) {
    for (int l = 0; l < layers; ++l) {
      dear_ns_.push_back(between(200'000, 900'000));
      wide_.push_back(between(8, 64) << 14);
      slim_.push_back(between(2, 16) << 14);
      weights_.push_back(add(between(4, 64) << 14));
      states_.push_back(add(program_.bytes.back()));
      program_.persistent.insert(program_.persistent.end(), {weights_.back(), states_.back()});
    }
  }

  void iteration(int layers) {
    std::vector<ProgramOp> ops;
    std::vector<std::vector<int>> kept;
    int x = add(1 << 16);
    ops.push_back({1, 20'000, {}, {x}, {}, false});
    for (int l = 0; l < layers; ++l) {
      const auto i = static_cast<std::size_t>(l);
      const int a = add(wide_[i]), b = add(wide_[i]), y = add(slim_[i]);
      ops.push_back({2, dear_ns_[i], {x, weights_[i]}, {a}, {}, true});
      ops.push_back({3, wide_[i] / 8, {a}, {b}, {}, true});
      ops.push_back({4, dear_ns_[i] / 3, {b, weights_[i]}, {y}, {}, true});
      kept.push_back({x, a, b});
      x = y;
    }
    std::vector<int> gradients(static_cast<std::size_t>(layers));
    int g = add(1 << 16);
    ops.push_back({5, 20'000, {x}, {g}, {x}, true});
    for (int l = layers - 1; l >= 0; --l) {
      const auto i = static_cast<std::size_t>(l);
      const int gb = add(wide_[i]), ga = add(wide_[i]), gx = add(program_.bytes[static_cast<std::size_t>(kept[i][0])]);
      gradients[i] = add(program_.bytes[static_cast<std::size_t>(weights_[i])]);
      ops.push_back({6, dear_ns_[i], {g, kept[i][2], weights_[i]}, {gb}, {g, kept[i][2]}, true});
      ops.push_back({7, wide_[i] / 4, {gb, kept[i][1]}, {ga}, {gb, kept[i][1]}, true});
      ops.push_back({8, dear_ns_[i] * 2, {ga, kept[i][0], weights_[i]}, {gx, gradients[i]}, {ga, kept[i][0]}, true});
      g = gx;
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(layers); ++i) {
      const int w = add(program_.bytes[static_cast<std::size_t>(weights_[i])]),
                s = add(program_.bytes[static_cast<std::size_t>(states_[i])]);
      std::vector<int> dies = {weights_[i], states_[i], gradients[i]};
      if (i == 0) dies.push_back(g);
      ops.push_back({9,
                     program_.bytes[static_cast<std::size_t>(w)] / 4,
                     {weights_[i], gradients[i], states_[i]},
                     {w, s},
                     dies,
                     false});
      weights_[i] = w;
      states_[i] = s;
    }
    program_.iterations.push_back(std::move(ops));
  }

  Program take() { return std::move(program_); }

 private:
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  int add(std::int64_t bytes) {
    program_.bytes.push_back(bytes);
    return static_cast<int>(program_.bytes.size()) - 1;
  }

  std::mt19937_64 random_;
  Program program_;
  std::vector<std::int64_t> dear_ns_, wide_, slim_;
  std::vector<int> weights_, states_;
};

}  // namespace

bool in_place(const ProgramOp& op) { return op.signature == 9; }

Program training_program(std::uint64_t seed, int layers, int iterations) {
  ProgramBuilder builder(seed, layers);
  for (int i = 0; i < iterations; ++i) builder.iteration(layers);
  return builder.take();
}

Program changing_program(std::uint64_t seed, int layers, int iterations) {
  ProgramBuilder builder(seed, layers);
  std::mt19937_64 random(seed + 1);
  for (int i = 0; i < iterations; ++i)
    builder.iteration(std::uniform_int_distribution<int>((layers + 1) / 2, layers)(random));
  return builder.take();
}

std::int64_t unlimited_peak(const Program& program) {
  std::int64_t now = 0, most = 0;
  for (const int v : program.persistent) now += program.bytes[static_cast<std::size_t>(v)];
  for (const auto& ops : program.iterations)
    for (const ProgramOp& op : ops) {
      if (!in_place(op))
        for (const int v : op.makes) now += program.bytes[static_cast<std::size_t>(v)];
      most = std::max(most, now);
      for (std::size_t i = in_place(op) ? op.makes.size() : 0; i < op.dies.size(); ++i)
        now -= program.bytes[static_cast<std::size_t>(op.dies[i])];
    }
  return most;
}

std::int64_t largest_op(const Program& program) {
  std::int64_t most = 0;
  for (const auto& ops : program.iterations)
    for (const ProgramOp& op : ops) {
      std::int64_t bytes = 0;
      for (const auto* side : {&op.reads, &op.makes})
        for (const int v : *side) bytes += program.bytes[static_cast<std::size_t>(v)];
      most = std::max(most, bytes);
    }
  return most;
}

}  // namespace stowage::testing
