// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/macs.h"

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

using Arguments = c10::ArrayRef<const c10::IValue>;

at::IntArrayRef shape(const c10::IValue& argument) { return argument.toTensor().sizes(); }

int64_t elements(const c10::IValue& argument) { return c10::multiply_integers(shape(argument)); }

// The size of a dim from the last one, 0 where there is no such dim: kernels refuse wrong shapes after this.
int64_t size_from_last(const c10::IValue& argument, size_t dim) {
  const at::IntArrayRef sizes = shape(argument);
  return dim < sizes.size() ? sizes[sizes.size() - 1 - dim] : 0;
}

// The elements of a channel, over all samples.
int64_t elements_of_channel(at::IntArrayRef field) {
  return field.size() < 2 || field[1] == 0 ? 0 : c10::multiply_integers(field) / field[1];
}

// The elements of a channel of a convolution's result.
int64_t outputs_of_channel(Arguments arguments) {
  const at::IntArrayRef field = shape(arguments[0]), weight = shape(arguments[1]);
  const c10::DimVector stride = arguments[3].toDimVector(), padding = arguments[4].toDimVector(),
                       dilation = arguments[5].toDimVector();
  const auto of_dim = [](const c10::DimVector& values, size_t dim) {
    return dim < values.size() ? values[dim] : values.front();
  };
  if (field.size() < 3 || weight.size() != field.size() || stride.empty() || padding.empty() || dilation.empty() ||
      *std::min_element(stride.begin(), stride.end()) < 1)
    return 0;
  int64_t count = field[0];
  for (size_t dim = 0; dim + 2 < field.size(); ++dim) {
    const int64_t reach = of_dim(dilation, dim) * (weight[dim + 2] - 1) + 1;
    const int64_t room = field[dim + 2] + 2 * of_dim(padding, dim) - reach;
    count *= room < 0 ? 0 : room / of_dim(stride, dim) + 1;
  }
  return count;
}

}  // namespace

MacRule mac_rule(std::string_view op) {
  if (op == "aten::mm" || op == "aten::bmm") return MacRule::kProduct;
  if (op == "aten::addmm" || op == "aten::baddbmm") return MacRule::kAddedProduct;
  if (op == "aten::convolution") return MacRule::kConvolution;
  if (op == "aten::convolution_backward") return MacRule::kConvolutionBackward;
  if (op == "aten::_scaled_dot_product_flash_attention_for_cpu") return MacRule::kAttention;
  if (op == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") return MacRule::kAttentionBackward;
  return MacRule::kNone;
}

int64_t count_macs(MacRule rule, Arguments arguments) {
  constexpr size_t kRead[] = {0, 2, 3, 7, 11, 2, 3};  // arguments, by rule
  if (rule == MacRule::kNone || arguments.size() < kRead[static_cast<size_t>(rule)]) return 0;
  const auto is_sharded = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && is_shard_tensor(value.toTensor());
  };
  if (std::any_of(arguments.begin(), arguments.end(), is_sharded)) return 0;
  switch (rule) {
    case MacRule::kProduct:
      return elements(arguments[0]) * size_from_last(arguments[1], 0);
    case MacRule::kAddedProduct:
      return elements(arguments[1]) * size_from_last(arguments[2], 0);
    // Each weight contributes to every output element (of a transposed one, every input element) of its channel.
    case MacRule::kConvolution:
      return elements(arguments[1]) *
             (arguments[6].toBool() ? elements_of_channel(shape(arguments[0])) : outputs_of_channel(arguments));
    // The gradients of the input and of the weight take as many each; that of the bias takes none.
    case MacRule::kConvolutionBackward: {
      const c10::List<bool> required = arguments[10].toBoolList();
      return (int64_t{required.get(0)} + int64_t{required.get(1)}) * elements(arguments[2]) *
             elements_of_channel(shape(arguments[7].toBool() ? arguments[1] : arguments[0]));
    }
    case MacRule::kAttention:
      return elements(arguments[0]) * size_from_last(arguments[1], 1) * 2;
    case MacRule::kAttentionBackward:
      return elements(arguments[1]) * size_from_last(arguments[2], 1) * 5;
    default:
      return 0;
  }
}

}  // namespace moonhalo
