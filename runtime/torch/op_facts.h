// What must be known of an operator beyond its schema. Everything PyTorch-specific that is a list of names lives here.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace stowage::runtime {

// "aten::add_.Tensor"
std::string full_name(const c10::OperatorHandle& op);

// A composite has no kernel of its own for the device: redispatching it brings its inner ops back to the hook.
bool is_composite(const c10::OperatorHandle& op);

// Autograd keeps what an op does with the tensor, or forward-mode differentiation goes through it.
bool is_differentiated(const at::Tensor& tensor);

// A composite that, where no gradient is wanted, has no inner ops: it fills its result's memory itself.
bool fills_by_itself(const c10::OperatorHandle& op);

// Profiler markers and the like: run, never recorded.
bool is_marker(const c10::OperatorHandle& op);

// Of the argument at `index` it only looks at the shape, never at the data (zeros_like, new_empty, ...).
bool reads_only_shape(const c10::OperatorHandle& op, std::size_t index);

// Returns memory whose content is undefined until something writes it.
bool returns_uninitialized(const c10::OperatorHandle& op);
// Of its first argument, the result has what the others leave: of memory that nobody has filled often nothing.
bool lays_over_first(const c10::OperatorHandle& op);

// Its argument was filled by Python on the host, outside the dispatcher (torch.tensor, torch.as_tensor).
bool lifts_host_data(const c10::OperatorHandle& op);

// Has a kernel that adds in any order on some accelerator, so that it does not repeat its bits there: PyTorch's own list
// (torch.use_deterministic_algorithms), and backward passes of convolutions and attention, whose libraries choose.
bool adds_in_any_order(const c10::OperatorHandle& op);

// Draws from a random generator.
bool draws_random_numbers(const c10::OperatorHandle& op);

// Of PyTorch's own operators their tags say so, and of Stowage's. Of others nothing may be said: a kernel in Python that calls one that
// draws, a kernel of an extension that asks the generator itself.
bool tags_tell_draws(const c10::OperatorHandle& op);

// Of an operator that is neither PyTorch's own nor Stowage's nothing says how its results' form follows from its arguments.
bool is_foreign(const c10::OperatorHandle& op);

// Its result, or the shape of its result, depends on data: the step cannot be replayed with other data. The op's
// arguments are on top of the stack.
bool depends_on_data(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

// Returns a number read from a tensor (Tensor.item()).
bool reads_scalar(const c10::OperatorHandle& op);

// Returns something about the content of its arguments that is no tensor: a number, or whether two are equal.
bool tells_value(const c10::OperatorHandle& op);

// The argument at `index` is a number, or a list of numbers, that may change without changing the shape of the result.
bool takes_number(const c10::OperatorHandle& op, std::size_t index);
// Two of Python's numbers, or lists of as many: a kernel may do something else for an integer than for a float.
bool same_kind_of_number(const c10::IValue& a, const c10::IValue& b);

// Position of the argument that counts elements from the beginning of the first one's storage, or -1.
int absolute_offset_argument(const c10::OperatorHandle& op);

// Changes sizes, strides or storage of an argument in place.
bool changes_metadata(const c10::OperatorHandle& op);

// The argument at `index` is written in place. Covers kernels that do so without saying so in their schema.
bool writes_argument(const c10::OperatorHandle& op, std::size_t index);

// May raise because of what its tensors hold: it looks at indices, classes, probabilities or matrices before it
// computes. Those of the backward pass look at indices that the forward pass has looked at. An operator that PyTorch
// does not bring itself may always raise.
bool checks_values(const c10::OperatorHandle& op, bool backward);
bool is_custom(const c10::OperatorHandle& op);
// One that checks nothing but a number among its arguments; and does it refuse that one?
bool checks_only_a_number(const c10::OperatorHandle& op);
bool refuses_number(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

// A collective, or a wait for one.
bool talks_to_other_processes(const c10::OperatorHandle& op);

// A list op that treats element i of all its tensor lists alone (_foreach_*, _fused_adamw_): running it once per
// element gives the same bits, and lets each element's update move by itself.
bool is_elementwise_list_op(const c10::OperatorHandle& op);

}  // namespace stowage::runtime
