// Matching a whole step: between tapes, and out of them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/matcher.h"
#include "runtime/plain_run.h"
#include "runtime/tensors.h"

namespace stowage::runtime {

void Matcher::begin_step(std::vector<at::Tensor> inputs, std::vector<std::shared_ptr<Tape>> others, std::function<void()> before_leaving,
                         bool copies, std::vector<std::unique_ptr<NumberSource>> numbers) {
  mode_ = Mode::kStep;
  mismatch_.clear();
  tape_ = own_;
  inputs_ = std::move(inputs);
  others_ = std::move(others);
  before_leaving_ = std::move(before_leaving);
  copies_ = copies;
  numbers_ = std::move(numbers);
  refreshed_ = false;
  left_in_section_ = false;
  chosen_ = -1;
  cursor_ = 0;
  end_ = tape_->ops.size();
  forget_passing();
  add_externals(*tape_, passing_);
  add_inputs(*tape_, passing_);
  generator_ = GeneratorState::current();
  intercept_ = std::make_unique<Intercept>(*this);
}

std::string Matcher::end_step() {
  if (mode_ == Mode::kStep && cursor_ != end_) {
    const auto ends_here = [&](std::size_t i) { return others_[i]->ops.size() == cursor_ && change_to(i); };
    bool found = false;
    for (std::size_t i = 0; i < others_.size() && !found; ++i) found = ends_here(i);
    if (!found) leave("the step does fewer operations than were recorded");
  }
  if (mode_ == Mode::kStep && !(GeneratorState::current() == *generator_)) leave("the step seeds the random generator");
  if (mode_ == Mode::kStep) numbers().end();
  intercept_.reset();
  return mismatch_;
}

bool Matcher::returns(const std::vector<at::Tensor>& tensors) const {
  if (tensors.size() + tape_->kept != tape_->returned.size()) return false;
  std::vector<bool> expected(tape_->blocks.size(), false);
  for (std::size_t i = 0; i < tape_->kept; ++i) expected[kept_block(i).index()] = true;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!same_tensor(tape_->returned[i], tensors[i], false)) return false;
    if (tape_->returned[i].valid()) expected[tape_->slots[tape_->returned[i].index()].block.index()] = true;
  }
  for (std::size_t b = 0; b < shells_.size(); ++b) {
    if (!expected[b] && is_held(shells_[b])) return false;
  }
  return true;
}

bool Matcher::abandon_step(const std::string& error) {
  const bool read_shell = error.find(kShellText) != std::string::npos;
  if (mode_ == Mode::kStep && !read_shell) leave("the step has raised an exception");
  intercept_.reset();
  return mode_ == Mode::kStep;
}

void Matcher::leave(const std::string& why) {
  if (mode_ != Mode::kStep) return;
  mismatch_ = why;
  left_in_section_ = cursor_ < end_ && tape_->ops[cursor_].section >= 0;
  mode_ = Mode::kLeft;
  take_back_numbers();
  if (before_leaving_) before_leaving_();
  // Python may have set the generator since the last op that draws. What has been matched draws first.
  const GeneratorState now = GeneratorState::current();
  const bool set = !(now == *generator_);
  if (set) generator_->restore();
  run_plainly(cursor_);
  if (set) now.restore();
}

void Matcher::run_plainly() { run_plainly(tape_->ops.size()); }

void Matcher::run_plainly(std::size_t to) { PlainRun(*tape_, inputs_).run(static_cast<std::int32_t>(to), shells_, copies_); }

void Matcher::fill(const at::Tensor& shell, const at::Tensor& content) {
  c10::TensorImpl* impl = shell.unsafeGetTensorImpl();
  const bool allowed = impl->allow_tensor_metadata_change();
  impl->set_allow_tensor_metadata_change(true);  // detach() takes that away, for the user's sake
  impl->set_storage_keep_dtype(content.storage());
  impl->set_storage_offset(content.storage_offset());
  impl->set_allow_tensor_metadata_change(allowed);
}

BlockId Matcher::kept_block(std::size_t i) const {
  return tape_->slots[tape_->returned[tape_->returned.size() - tape_->kept + i].index()].block;
}

void Matcher::take_kept(std::vector<at::Tensor>& contents) {
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const std::optional<Shell>& shell = shells_[kept_block(i).index()];
    if (!is_held(shell)) continue;
    c10::StorageImpl* storage = contents[i].storage().unsafeGetStorageImpl();
    fill_shell(c10::Storage(shell->lock()), std::move(storage->_mutable_data_ptr_no_checks()), storage->nbytes());
  }
  contents.clear();
}

bool Matcher::kept_agree(const std::vector<at::Tensor>& contents) const {
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const std::optional<Shell>& shell = shells_[kept_block(i).index()];
    if (!is_held(shell)) continue;
    const c10::Storage now(shell->lock());
    const std::size_t bytes = contents[i].storage().nbytes();
    if (now.nbytes() < bytes || (bytes > 0 && std::memcmp(now.data(), contents[i].storage().data(), bytes) != 0)) return false;
  }
  return true;
}

void Matcher::take_back_numbers() {
  for (const auto& source : numbers_) source->take_back();
}

void Matcher::forget_step() {
  intercept_.reset();
  take_back_numbers();
  numbers_.clear();
  mode_ = Mode::kSection;
  tape_ = own_;
  inputs_.clear();
  others_.clear();
  before_leaving_ = nullptr;
  forget_passing();
}

bool Matcher::try_others(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (mode_ != Mode::kStep) return false;
  const auto before = std::make_tuple(tape_, passing_, shells_, end_, chosen_);
  for (std::size_t i = 0; i < others_.size(); ++i) {
    if (!change_to(i)) continue;
    if (why_not(op, stack).empty()) return true;
    std::tie(tape_, passing_, shells_, end_, chosen_) = before;
  }
  return false;
}

// Goes on with another tape, when it begins with what has been matched so far.
bool Matcher::change_to(std::size_t other) {
  const std::shared_ptr<Tape>& next = others_[other];
  std::vector<BlockId> now_called(tape_->blocks.size());
  if (next == tape_ || !same_beginning(*tape_, *next, cursor_, now_called)) return false;
  take_back_numbers();
  for (std::size_t i = 0; i < cursor_; ++i) {
    if (next->ops[i].section < 0) refreshed_ = true;  // told as changed where they may have: this tape's own numbers are not looked at
    next->ops[i].arguments = tape_->ops[i].arguments;
  }
  Storages passing;
  add_externals(*next, passing);
  add_inputs(*next, passing);
  for (const auto& [storage, parts] : passing_) {
    const BlockId block = now_called[parts[0].block.index()];
    if (block.valid() && parts.size() == 1 && passing.find(storage) == passing.end()) passing[storage] = {{block, parts[0].start_bytes, parts[0].end_bytes}};
  }
  Shells shells(next->blocks.size());
  for (std::size_t b = 0; b < shells_.size(); ++b) {
    if (shells_[b] && now_called[b].valid()) shells[now_called[b].index()] = shells_[b];
  }
  tape_ = next;
  end_ = next->ops.size();
  passing_ = std::move(passing);
  shells_ = std::move(shells);
  chosen_ = static_cast<int>(other);
  return true;
}

}  // namespace stowage::runtime
