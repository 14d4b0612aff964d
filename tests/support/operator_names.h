// Names of operators for random sharded programs: one of each rule, and one that no rule knows.
#pragma once

#include <array>
#include <string_view>

namespace stowage::testing {

inline constexpr std::array<std::string_view, 42> kShardingTargets = {
    "aten.relu.default",
    "aten.t.default",
    "aten.mm.default",
    "aten.bmm.default",
    "aten.addmm.default",
    "aten.view.default",
    "aten.permute.default",
    "aten.expand.default",
    "aten.cat.default",
    "aten.select.int",
    "aten.select_backward.default",
    "aten.slice.Tensor",
    "aten.add.Tensor",
    "aten.mul.Tensor",
    "aten.sum.dim_IntList",
    "aten.mean.dim",
    "aten.max.dim",
    "aten._log_softmax.default",
    "aten._softmax_backward_data.default",
    "aten.topk.default",
    "aten.linalg_vector_norm.default",
    "aten.native_layer_norm.default",
    "aten.native_layer_norm_backward.default",
    "aten.native_group_norm.default",
    "aten.native_batch_norm.default",
    "aten.embedding.default",
    "aten.embedding_dense_backward.default",
    "aten.index_select.default",
    "aten.gather.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten.convolution.default",
    "aten.convolution_backward.default",
    "aten.max_pool2d_with_indices.default",
    "aten.nll_loss_forward.default",
    "aten.nll_loss_backward.default",
    "aten.mse_loss.default",
    "aten._fused_adamw_.default",
    "aten.zeros.default",
    "aten.triu.default",
    "aten.roll.default",
    "aten.constant_pad_nd.default",
    "aten.unknown.default"};

}  // namespace stowage::testing
