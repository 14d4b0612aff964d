#include "runtime/torch/op_facts.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/torch/content.h"

namespace stowage::runtime {
namespace {

using c10::DispatchKey;

std::string_view base_name(const c10::OperatorHandle& op) {
  std::string_view name = op.schema().name();
  const auto colons = name.find("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

bool in_aten(const c10::OperatorHandle& op) { return op.schema().name().starts_with("aten::"); }

// x[mask] has as many rows as the mask has ones; x[numbers] has the shape of the numbers.
bool indexes_by_mask(const c10::IValue& indices) {
  for (const std::optional<at::Tensor>& index : indices.toOptionalTensorVector()) {
    if (index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte))
      return true;
  }
  return false;
}

}  // namespace

std::string full_name(const c10::OperatorHandle& op) {
  const std::string& overload = op.schema().overload_name();
  return overload.empty() ? op.schema().name() : op.schema().name() + "." + overload;
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CPU);
}

bool is_differentiated(const at::Tensor& tensor) {
  return (tensor.requires_grad() && c10::GradMode::is_enabled()) || tensor._fw_grad(0).defined();
}

bool fills_by_itself(const c10::OperatorHandle& op) { return in_aten(op) && base_name(op) == "max_pool1d"; }

bool is_marker(const c10::OperatorHandle& op) { return op.schema().name().starts_with("profiler::"); }

bool reads_only_shape(const c10::OperatorHandle& op, std::size_t index) {
  if (!in_aten(op) || index != 0) return false;
  const std::string_view name = base_name(op);
  const bool bernoulli_of_number = name == "bernoulli" && op.schema().overload_name() == "p";
  return name.starts_with("new_") || name.ends_with("_like") || name == "is_same_size" || bernoulli_of_number;
}

bool returns_uninitialized(const c10::OperatorHandle& op) {
  if (!in_aten(op)) return false;
  const std::string_view name = base_name(op);
  return name == "empty" || name == "empty_strided" || name == "empty_like" || name == "new_empty" ||
         name == "new_empty_strided" || name == "empty_permuted";
}

bool lays_over_first(const c10::OperatorHandle& op) {
  static const std::set<std::string_view> names = {
      "index_copy",    "index_put",      "_unsafe_index_put", "index_fill",
      "put",           "masked_fill",    "masked_scatter",    "scatter",
      "slice_scatter", "select_scatter", "diagonal_scatter",  "as_strided_scatter"};
  return in_aten(op) && names.contains(base_name(op));
}

bool lifts_host_data(const c10::OperatorHandle& op) {
  return in_aten(op) && (base_name(op) == "lift_fresh" || base_name(op) == "lift");
}

bool draws_random_numbers(const c10::OperatorHandle& op) { return op.hasTag(at::Tag::nondeterministic_seeded); }

bool tags_tell_draws(const c10::OperatorHandle& op) {
  return in_aten(op) || op.schema().name().starts_with("stowage::");
}

bool is_foreign(const c10::OperatorHandle& op) {
  static const std::set<std::string_view> kOwn = {"aten",
                                                  "prims",
                                                  "quantized",
                                                  "_quantized",
                                                  "quantized_decomposed",
                                                  "quantization",
                                                  "mkldnn",
                                                  "mkl",
                                                  "onednn",
                                                  "mkldnn_prepacked",
                                                  "sparse",
                                                  "prepacked",
                                                  "xnnpack",
                                                  "c10d",
                                                  "symm_mem",
                                                  "c10d_functional",
                                                  "_c10d_functional",
                                                  "_c10d_functional_autograd",
                                                  "_dtensor",
                                                  "fsdp",
                                                  "profiler",
                                                  "inductor",
                                                  "inductor_prims",
                                                  "rngprims",
                                                  "debugprims",
                                                  "streams",
                                                  "stowage"};
  const std::string_view name = op.schema().name();
  return !kOwn.contains(name.substr(0, name.find("::")));
}

bool depends_on_data(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.hasTag(at::Tag::data_dependent_output)) return true;
  if (!op.hasTag(at::Tag::dynamic_output_shape)) return false;
  // Lengths are numbers
  if (in_aten(op) && base_name(op) == "_ctc_loss" &&
      !stack[stack.size() - op.schema().arguments().size() + 2].isTensor())
    return false;
  return !(in_aten(op) && base_name(op) == "index") || indexes_by_mask(stack.back());
}

bool reads_scalar(const c10::OperatorHandle& op) { return in_aten(op) && base_name(op) == "_local_scalar_dense"; }

bool tells_value(const c10::OperatorHandle& op) {
  if (!op.hasTag(at::Tag::data_dependent_output)) return false;
  if (tells_content(op)) return true;
  for (const c10::Argument& result : op.schema().returns()) {
    if (result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->kind() == c10::TypeKind::ListType)
      return false;
  }
  return true;
}

namespace {

// An integer that says which elements, and not how many.
bool says_where(const c10::OperatorHandle& op, const std::string& argument) {
  using Listed = std::pair<std::string_view, std::string_view>;
  static constexpr std::array<Listed, 16> kPlaces = {{{"slice_backward", "start"},
                                                      {"slice_backward", "end"},
                                                      {"slice_scatter", "start"},
                                                      {"slice_scatter", "end"},
                                                      {"select_backward", "index"},
                                                      {"select_scatter", "index"},
                                                      {"roll", "shifts"},
                                                      {"kthvalue", "k"},
                                                      {"tril", "diagonal"},
                                                      {"triu", "diagonal"},
                                                      {"randint", "low"},
                                                      {"randint", "high"},
                                                      {"randint_like", "low"},
                                                      {"randint_like", "high"},
                                                      {"random_", "from"},
                                                      {"random_", "to"}}};
  if (!in_aten(op)) return false;
  const Listed asked(base_name(op), argument);
  return std::find(kPlaces.begin(), kPlaces.end(), asked) != kPlaces.end();
}

}  // namespace

bool takes_number(const c10::OperatorHandle& op, std::size_t index) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  c10::TypePtr type = arguments[index].type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  if (type->kind() == c10::TypeKind::ListType) type = type->expectRef<c10::ListType>().getElementType();
  const bool tensor_of_number = type->isSubtypeOf(*c10::TensorType::get());
  if (tensor_of_number) return true;  // where the caller has found one that Python made of a number
  if (type->kind() == c10::TypeKind::IntType) return says_where(op, arguments[index].name());
  if (type->kind() != c10::TypeKind::NumberType && type->kind() != c10::TypeKind::FloatType) return false;
  const std::string_view name = base_name(op);
  return !(name.starts_with("arange") || name.starts_with("range") || name.starts_with("linspace") ||
           name.starts_with("logspace"));
}

bool same_kind_of_number(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDoubleList() && b.isDoubleList()) return a.toDoubleList().size() == b.toDoubleList().size();
  if (a.isIntList() && b.isIntList()) return a.toIntList().size() == b.toIntList().size();
  if (a.isList() && b.isList()) {
    const c10::ArrayRef<c10::IValue> x = a.toListRef();
    const c10::ArrayRef<c10::IValue> y = b.toListRef();
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_kind_of_number);
  }
  return (a.isDouble() && b.isDouble()) || (a.isInt() && b.isInt()) || (a.isComplexDouble() && b.isComplexDouble()) ||
         (a.isBool() && b.isBool());
}

int absolute_offset_argument(const c10::OperatorHandle& op) {
  if (!in_aten(op) || !base_name(op).starts_with("as_strided")) return -1;
  const std::optional<int> position = op.schema().argumentIndexWithName("storage_offset");
  return position.value_or(-1);
}

bool adds_in_any_order(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 15> kForward = {
      "index_add",  "index_put",          "_index_put_impl",  "_unsafe_index_put", "scatter_add", "scatter_reduce",
      "histc",      "bincount",           "cumsum",           "kthvalue",          "median",      "nanmedian",
      "max_unpool", "nll_loss2d_forward", "repeat_interleave"};
  static constexpr std::array<std::string_view, 16> kBackward = {
      "grid_sampler_",     "adaptive_avg_pool",   "_adaptive_avg_pool",  "avg_pool3d",
      "adaptive_max_pool", "fractional_max_pool", "max_pool3d",          "max_pool2d",
      "upsample_",         "_upsample_",          "reflection_pad",      "replication_pad",
      "_ctc_loss",         "_embedding_bag",      "_scaled_dot_product", "convolution"};
  if (!in_aten(op)) return false;
  const std::string_view name = base_name(op);
  const auto begins = [name](std::string_view with) { return name.starts_with(with); };
  if (name == "put" || name == "put_" || std::any_of(kForward.begin(), kForward.end(), begins)) return true;
  return name.find("_backward") != std::string_view::npos && std::any_of(kBackward.begin(), kBackward.end(), begins);
}

bool changes_metadata(const c10::OperatorHandle& op) { return op.hasTag(at::Tag::inplace_view); }

bool writes_argument(const c10::OperatorHandle& op, std::size_t index) {
  const c10::Argument& argument = op.schema().arguments()[index];
  if (const c10::AliasInfo* alias = argument.alias_info(); alias != nullptr && alias->isWrite()) return true;
  // Norms update their running statistics in training without an annotation.
  static constexpr std::array<std::string_view, 8> kBatchNorms = {
      "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",       "_batch_norm_impl_index",
      "batch_norm",        "instance_norm",    "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"};
  if (!in_aten(op)) return false;
  if (base_name(op) == "mkldnn_rnn_layer_backward")
    return argument.name() == "workspace";  // oneDNN works in it; strict="paranoid" has found it
  for (const std::string_view norm : kBatchNorms) {
    if (base_name(op) == norm) return argument.name() == "running_mean" || argument.name() == "running_var";
  }
  return false;
}

bool is_custom(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 7> kOwn = {
      "aten::", "prims::", "mkldnn::", "mkl::", "c10d::", "_c10d_functional::", "stowage::"};
  return std::none_of(kOwn.begin(), kOwn.end(),
                      [&](std::string_view own) { return op.schema().name().starts_with(own); });
}

bool talks_to_other_processes(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 5> kOfProcesses = {
      "c10d::", "c10d_functional::", "_c10d_functional::", "_c10d_functional_autograd::", "symm_mem::"};
  return std::any_of(kOfProcesses.begin(), kOfProcesses.end(),
                     [&](std::string_view own) { return op.schema().name().starts_with(own); });
}

bool checks_values(const c10::OperatorHandle& op, bool backward) {
  if (!in_aten(op)) return is_custom(op);
  static constexpr std::array<std::string_view, 5> kOfMatrices = {"linalg_", "_linalg_", "cholesky", "geqrf", "ormqr"};
  static constexpr std::array<std::string_view, 39> kOfElements = {"embedding",
                                                                   "_embedding_bag",
                                                                   "index",
                                                                   "_index_put_impl",
                                                                   "_unsafe_index",
                                                                   "gather",
                                                                   "scatter",
                                                                   "take",
                                                                   "put",
                                                                   "nll_loss",
                                                                   "multi_margin_loss",
                                                                   "multilabel_margin_loss",
                                                                   "_ctc_loss",
                                                                   "binary_cross_entropy",
                                                                   "multinomial",
                                                                   "bernoulli",
                                                                   "normal",
                                                                   "poisson",
                                                                   "binomial",
                                                                   "masked_scatter",
                                                                   "repeat_interleave",
                                                                   "bincount",
                                                                   "histogram",
                                                                   "_assert_",
                                                                   "segment_reduce",
                                                                   "lu_unpack",
                                                                   "floor_divide",
                                                                   "remainder",
                                                                   "fmod",
                                                                   "histc",
                                                                   "_histogramdd",
                                                                   "max_unpool",
                                                                   "fractional_max_pool",
                                                                   "fake_quantize",
                                                                   "_fake_quantize",
                                                                   "_functional_assert",
                                                                   "sparse",
                                                                   "_sparse",
                                                                   "_validate"};
  const std::string_view name = base_name(op);
  const auto begins = [&](std::string_view beginning) { return name.starts_with(beginning); };
  static constexpr std::array<std::string_view, 4> kOfAnyNumbers = {"linalg_vector_norm", "linalg_cross",
                                                                    "linalg_vecdot", "linalg_diagonal"};
  if (std::ranges::find(kOfAnyNumbers, name) != kOfAnyNumbers.end()) return false;
  if (std::any_of(kOfMatrices.begin(), kOfMatrices.end(), begins)) return true;
  if (backward || name.find("_backward") != std::string_view::npos) return false;
  return std::any_of(kOfElements.begin(), kOfElements.end(), begins) ||
         (name == "div" && op.schema().overload_name().ends_with("_mode"));
}

bool checks_only_a_number(const c10::OperatorHandle& op) {
  return in_aten(op) && base_name(op) == "bernoulli_" && op.schema().overload_name() == "float";
}

bool refuses_number(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  if (!checks_only_a_number(op)) return false;
  const c10::IValue& probability = arguments[arguments.size() - op.schema().arguments().size() + 1];
  return probability.isDouble() && !(probability.toDouble() >= 0 && probability.toDouble() <= 1);
}

bool is_elementwise_list_op(const c10::OperatorHandle& op) {
  if (!in_aten(op)) return false;
  const std::string_view name = base_name(op);
  return name.starts_with("_foreach_") || name == "_fused_adam_" || name == "_fused_adamw_" || name == "_fused_sgd_" ||
         name == "_fused_adagrad_";
}

}  // namespace stowage::runtime
