// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "moonhalo/ops/neighborhood/kernels/cuda.h"
#include "moonhalo/ops/neighborhood/kernels/kernels.h"
#include "moonhalo/ops/neighborhood/operator.h"

namespace moonhalo {

/// A checked call in global terms: the spatial dims are the last `spatial` of the three axes.
struct NeighborhoodCall {
  std::array<neighborhood::Axis, 3> axes;
  int64_t spatial = 0;
  double scale = 1;

  neighborhood::Axis& axis(int64_t i) { return axes[3 - spatial + i]; }
  const neighborhood::Axis& axis(int64_t i) const { return axes[3 - spatial + i]; }
};

/// Checks global shapes and arguments. The queries and keys of the result are the whole dims. `blocks` is added to the
/// messages.
NeighborhoodCall check_neighborhood(at::IntArrayRef query, at::IntArrayRef key, at::IntArrayRef value,
                                    const Neighborhood& neighborhood, std::optional<double> scale,
                                    const std::string& blocks = "");
/// The checks of a call ask each of its tensors for the global shape.
struct NeighborhoodOperand {
  at::IntArrayRef shape;
  at::ScalarType type;
  c10::Device device;
};
/// The call of an operator with these arguments. As check_neighborhood, and TypeError, ValueError unless the tensors
/// are of one type that the kernels of their device know, on one device.
NeighborhoodCall checked_neighborhood(const NeighborhoodOperand& query, const NeighborhoodOperand& key,
                                      const NeighborhoodOperand& value, at::IntArrayRef window, at::IntArrayRef stride,
                                      at::IntArrayRef dilation, const c10::List<bool>& is_causal,
                                      std::optional<double> scale, const std::string& blocks = "");
/// The kernels of a kind of device, as kernels/cuda.h declares them for CUDA.
struct NeighborhoodDeviceKernels {
  void (*forward)(const neighborhood::Problem& problem, neighborhood::cuda::Element element, int device) = nullptr;
  void (*backward)(const neighborhood::Problem& problem, const neighborhood::Strided& delta,
                   neighborhood::cuda::Element element, int device) = nullptr;
};
/// Sets the kernels of a kind of device, before they are used; CUDA's are known. Calls on devices without kernels are
/// refused. Returns those that were set before.
NeighborhoodDeviceKernels register_neighborhood_kernels(c10::DeviceType type, const NeighborhoodDeviceKernels& kernels);

/// A further tensor of a derivative's call, and what it must be like: query, value, or logsumexp.
struct NeighborhoodExtra {
  enum class Like { kQuery, kValue, kLogsumexp };
  const char* name;
  Like like;
  NeighborhoodOperand tensor;
};
/// Checks them against query and value. ValueError, TypeError, which begin with `op`.
void check_neighborhood_extras(const char* op, const NeighborhoodOperand& query, const NeighborhoodOperand& value,
                               at::ArrayRef<NeighborhoodExtra> extras);
/// The dtype of logsumexp.
at::ScalarType neighborhood_sum_type(at::ScalarType query);
/// Uninitialised output and logsumexp of a forward call.
std::tuple<at::Tensor, at::Tensor> neighborhood_results(const at::Tensor& query, const at::Tensor& value);

/// The keys [begin, end) of the dim that the windows of the queries [begin, end) reach; {0, 0} for no query.
Interval keys_reached(const neighborhood::Axis& axis, const Interval& queries);

/// Describes a tensor of a block to the kernels; `feature_dims` is 1, or 0 for logsumexp.
neighborhood::Strided neighborhood_strided(const at::Tensor& tensor, int64_t spatial, int64_t feature_dims);

/// Output and logsumexp of the queries of a block. `key` and `value` hold the rows that the call's axes say; at least
/// those that the windows reach. Plain tensors, all on the CPU (`kernels`) or on one device; no autograd.
std::tuple<at::Tensor, at::Tensor> neighborhood_forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const NeighborhoodCall& call,
    const neighborhood::KernelSet& kernels = neighborhood::kernels_native());
/// The same, written to the given tensors, which may be parts of others (features adjacent).
void neighborhood_forward_into(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const at::Tensor& output, const at::Tensor& logsumexp, const NeighborhoodCall& call,
                               const neighborhood::KernelSet& kernels = neighborhood::kernels_native());

/// Gradients of query, and of key and value as far as this block's queries see them. `grad_logsumexp` may be undefined.
/// The same sums in the same order for any number of threads, and every time on a GPU.
std::tuple<at::Tensor, at::Tensor, at::Tensor> neighborhood_backward(
    const at::Tensor& grad_output, const at::Tensor& grad_logsumexp, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& output, const at::Tensor& logsumexp, const NeighborhoodCall& call,
    const neighborhood::KernelSet& kernels = neighborhood::kernels_native());

/// The same for several boxes of queries that see one box of keys, one after the other; the gradients
/// of keys and values are summed over them.
class NeighborhoodGradients {
 public:
  NeighborhoodGradients(const at::Tensor& key, const at::Tensor& value,
                        const neighborhood::KernelSet& kernels = neighborhood::kernels_native());
  /// Writes `grad_query`, which may be a part of another tensor (features adjacent). The keys of
  /// `call` are those given above.
  void add(const at::Tensor& grad_output, const at::Tensor& grad_logsumexp, const at::Tensor& query,
           const at::Tensor& output, const at::Tensor& logsumexp, const at::Tensor& grad_query,
           const NeighborhoodCall& call);
  /// Gives the gradients of key and value. Once.
  std::tuple<at::Tensor, at::Tensor> finish();

 private:
  void add_on_device(neighborhood::Problem& problem, const at::Tensor& logsumexp, const NeighborhoodCall& call);

  const neighborhood::KernelSet& set_;
  at::Tensor key_, value_;
  at::Tensor grad_key_, grad_value_;  // undefined until something was added
  at::Tensor key_sums_, value_sums_;  // of the CPU's kernels
  neighborhood::Problem problem_;     // of the last box
};

/// Does what both need around their kernels: results are made, and `run` fills them, unless there is no query. Its
/// problem is without slabs and sums.
std::tuple<at::Tensor, at::Tensor> neighborhood_forward_by(const at::Tensor& query, const at::Tensor& key,
                                                           const at::Tensor& value, const NeighborhoodCall& call,
                                                           const std::function<void(neighborhood::Problem&)>& run);
std::tuple<at::Tensor, at::Tensor, at::Tensor> neighborhood_backward_by(
    const at::Tensor& grad_output, const at::Tensor& grad_logsumexp, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& output, const at::Tensor& logsumexp, const NeighborhoodCall& call,
    const std::function<void(neighborhood::Problem&)>& run);

}  // namespace moonhalo
