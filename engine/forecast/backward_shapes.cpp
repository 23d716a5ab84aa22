// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "moonhalo/engine/forecast/shape_rules.h"
#include "moonhalo/engine/forecast/work_space.h"

namespace moonhalo {
namespace {

// Most derivatives have the shape of the input, which is argument `kInput`.
template <size_t kInput>
void gradient_of(ShapeCall& call) {
  call.give(at::empty_like(call.tensor(kInput)));
}

// The kernel copies a gradient of the result that is not contiguous, such as an expanded one.
void gradient_by_copy(ShapeCall& call) {
  call.use_work_space(bytes_of_contiguous_copy(call.tensor(0)));
  gradient_of<1>(call);
}

template <size_t kInput>
void row_major_gradient_of(ShapeCall& call) {
  call.give_like(call.tensor(kInput));
}

// Losses of an input and a target that may be broadcast.
void loss_gradient(ShapeCall& call) { call.give(at::add(call.tensor(1), call.tensor(2))); }

void embedding_gradient(ShapeCall& call) {
  const at::Tensor& grad = call.tensor(0);
  call.give({call.value(2).toInt(), grad.size(-1)}, grad.scalar_type());
}

template <size_t kRows>
void embedding_bag_gradient(ShapeCall& call) {
  const at::Tensor& grad = call.tensor(0);
  call.give({call.value(kRows).toInt(), grad.size(1)}, grad.scalar_type());
}

void any_embedding_bag_gradient(ShapeCall& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.value(9).toBool(), "embedding_bag: fake tensors have no sparse gradients",
                              "\n  have  sparse = true\n  fix   give sparse = false");
  embedding_bag_gradient<6>(call);
}

void embedding_bag_weights_gradient(ShapeCall& call) {
  call.give({call.tensor(2).size(0)}, call.tensor(0).scalar_type());
}

void prelu_gradients(ShapeCall& call) {
  call.give(at::empty_like(call.tensor(1)));
  call.give(at::empty_like(call.tensor(1)));
}

void weight_norm_gradients(ShapeCall& call) {
  call.give(at::empty_like(call.tensor(1)));
  call.give(at::empty_like(call.tensor(2)));
}

}  // namespace

const ShapeRules& backward_shape_rules() {
  static const ShapeRules rules = {
      {"aten::hardtanh_backward", gradient_of<1>},
      {"aten::hardswish_backward", gradient_of<1>},
      {"aten::log_sigmoid_backward", gradient_of<1>},
      {"aten::nll_loss2d_backward", row_major_gradient_of<1>},
      {"aten::smooth_l1_loss_backward", loss_gradient},
      {"aten::mse_loss_backward", loss_gradient},
      {"aten::huber_loss_backward", loss_gradient},
      {"aten::binary_cross_entropy_backward", gradient_of<1>},
      {"aten::native_dropout_backward", gradient_of<0>},
      {"aten::multilabel_margin_loss_backward", row_major_gradient_of<1>},
      {"aten::multi_margin_loss_backward", row_major_gradient_of<1>},
      {"aten::max_pool3d_with_indices_backward", gradient_of<1>},
      {"aten::fractional_max_pool3d_backward", row_major_gradient_of<1>},
      {"aten::_adaptive_avg_pool2d_backward", gradient_by_copy},
      {"aten::_adaptive_avg_pool3d_backward", row_major_gradient_of<1>},
      {"aten::glu_backward", row_major_gradient_of<1>},
      {"aten::embedding_dense_backward", embedding_gradient},
      {"aten::_embedding_bag_backward", any_embedding_bag_gradient},
      {"aten::_embedding_bag_dense_backward", embedding_bag_gradient<5>},
      {"aten::_embedding_bag_per_sample_weights_backward", embedding_bag_weights_gradient},
      {"aten::_prelu_kernel_backward", prelu_gradients},
      {"aten::replication_pad2d_backward", gradient_by_copy},
      {"aten::replication_pad3d_backward", gradient_of<1>},
      {"aten::reflection_pad2d_backward", gradient_by_copy},
      {"aten::_weight_norm_interface_backward", weight_norm_gradients},
      {"aten::_standard_gamma_grad", gradient_of<0>},
      {"aten::_ctc_loss_backward", row_major_gradient_of<1>},
      {"aten::_cdist_backward", row_major_gradient_of<1>},
      {"aten::_pdist_backward", row_major_gradient_of<1>},
  };
  return rules;
}

}  // namespace moonhalo
