// SPDX-License-Identifier: Apache-2.0
// The operators on point clouds for plain tensors, and their derivatives. Distances are differentiated through
//
//     offsets = points[indices] - query        linear, its adjoint linear again
//
// so that derivatives of any order are made of these two and of LibTorch's operators.
#include "moonhalo/ops/points/knn.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <initializer_list>
#include <limits>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/ops/points/arguments.h"
#include "moonhalo/ops/points/kd_search.h"
#include "moonhalo/ops/points/row_routing.h"

namespace moonhalo {

void check_points(const char* op, at::IntArrayRef query, at::IntArrayRef points, at::ScalarType query_dtype,
                  at::ScalarType points_dtype) {
  const size_t dims = points.size();
  TORCH_CHECK_VALUE(dims >= 2 && query.size() == dims && query.slice(0, dims - 2) == points.slice(0, dims - 2) &&
                        query.back() == points.back() && query.back() > 0,
                    op, ": a query of shape ", shape_string(query), " for points of shape ", shape_string(points),
                    "\n  have  [batch..., M, D] and [batch..., N, D] are required",
                    "\n  fix   give both the same batch and as many coordinates");
  TORCH_CHECK_TYPE(query_dtype == points_dtype && (query_dtype == at::kFloat || query_dtype == at::kDouble), op,
                   ": a query of ", query_dtype, " and points of ", points_dtype,
                   "\n  have  Float or Double, both the same, is required\n  fix   convert them");
}

void check_most(const char* op, const char* what, int64_t most, int64_t limit) {
  TORCH_CHECK_VALUE(most >= 1 && most <= limit, op, ": ", what, " = ", most, " is not in [1, ", limit, "]",
                    limit == std::numeric_limits<int64_t>::max() ? "\n  have  no neighbour to look for"
                                                                 : "\n  have  number of points",
                    "\n  fix   ask for at least one neighbour, and for no more than there are points");
}

void check_radius(double radius, int64_t max_neighbors) {
  TORCH_CHECK_VALUE(radius >= 0, "radius_search: the radius is ", radius,
                    "\n  have  a number that is not a distance\n  fix   give a radius of at least 0");
  check_most("radius_search", "max_neighbors", max_neighbors, std::numeric_limits<int64_t>::max());
}

void check_indices(at::IntArrayRef query_rows, at::IntArrayRef indices, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(indices.size() == query_rows.size() + 1 && indices.slice(0, query_rows.size()) == query_rows,
                    "neighbor_offsets: indices of shape ", shape_string(indices), " for queries ",
                    shape_string(query_rows),
                    "\n  have  [batch..., M, K] is required\n  fix   give a list of indices for every query");
  TORCH_CHECK_TYPE(dtype == at::kLong, "neighbor_offsets: indices of ", dtype,
                   "\n  have  Long is required\n  fix   convert them");
}

at::Tensor one_batch(const at::Tensor& tensor, int64_t batch_dims) {
  std::vector<int64_t> shape{1};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (d < batch_dims) {
      shape[0] *= tensor.size(d);
    } else {
      shape.push_back(tensor.size(d));
    }
  }
  return tensor.reshape(shape).contiguous();
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensor = at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

void check(const char* op, const Tensor& query, const Tensor& points) {
  check_points(op, query.sizes(), points.sizes(), query.scalar_type(), points.scalar_type());
}

std::vector<int64_t> with_rows(const Tensor& query, std::initializer_list<int64_t> rest) {
  std::vector<int64_t> shape(query.sizes().begin(), query.sizes().end() - 1);
  shape.insert(shape.end(), rest);
  return shape;
}

Triple search(const Tensor& query, const Tensor& points, int64_t most, std::optional<double> radius) {
  const int64_t batch = points.dim() - 2;
  const Tensor q = one_batch(query, batch), p = one_batch(points, batch);
  NeighborLists lists(q.size(0), q.size(1), most, radius, q.scalar_type());
  lists.search(q, p, 0);
  lists.finish();
  return {lists.distances().view(with_rows(query, {most})), lists.indices().view(with_rows(query, {most})),
          lists.counts().view(with_rows(query, {}))};
}

Pair knn_cpu(const Tensor& query, const Tensor& points, int64_t k) {
  check("knn", query, points);
  check_most("knn", "k", k, points.size(-2));
  auto [distances, indices, counts] = search(query, points, k, std::nullopt);
  return {distances, indices};
}

Pair knn_meta(const Tensor& query, const Tensor& points, int64_t k) {
  check("knn", query, points);
  check_most("knn", "k", k, points.size(-2));
  const auto shape = with_rows(query, {k});
  return {at::empty(shape, query.options()), at::empty(shape, query.options().dtype(at::kLong))};
}

Triple radius_cpu(const Tensor& query, const Tensor& points, double radius, int64_t max_neighbors) {
  check("radius_search", query, points);
  check_radius(radius, max_neighbors);
  return search(query, points, max_neighbors, radius);
}

Triple radius_meta(const Tensor& query, const Tensor& points, double radius, int64_t max_neighbors) {
  check("radius_search", query, points);
  check_radius(radius, max_neighbors);
  const auto shape = with_rows(query, {max_neighbors});
  const auto integers = query.options().dtype(at::kLong);
  return {at::empty(shape, query.options()), at::empty(shape, integers), at::empty(with_rows(query, {}), integers)};
}

void check_offsets(const Tensor& query, const Tensor& points, const Tensor& indices) {
  check("neighbor_offsets", query, points);
  check_indices(query.sizes().slice(0, query.dim() - 1), indices.sizes(), indices.scalar_type());
}

Tensor offsets_cpu(const Tensor& query, const Tensor& points, const Tensor& indices) {
  check_offsets(query, points, indices);
  const int64_t batch = points.dim() - 2;
  const Tensor index = one_batch(indices, batch);
  const Tensor numbers = row_numbers(index, points.size(-2), "neighbor_offsets");
  const Tensor rows = rows_at(points.reshape({-1, points.size(-1)}), numbers);
  return offsets_of(rows, one_batch(query, batch), index).view(with_rows(query, {indices.size(-1), points.size(-1)}));
}

Tensor offsets_meta(const Tensor& query, const Tensor& points, const Tensor& indices) {
  check_offsets(query, points, indices);
  return at::empty(with_rows(query, {indices.size(-1), points.size(-1)}), query.options());
}

// Says which gradients are required, of query and of points. The other one is undefined.
using Wanted = std::array<bool, 2>;

Pair offsets_backward_cpu(const Tensor& grad, const Tensor& points, const Tensor& indices, Wanted required) {
  const int64_t batch = points.dim() - 2;
  const Tensor index = one_batch(indices, batch), g = one_batch(grad, batch);
  const Tensor numbers = row_numbers(index, points.size(-2), "neighbor_offsets");
  Pair result;
  if (required[0]) std::get<0>(result) = query_gradient(g, index).view(with_rows(indices, {points.size(-1)}));
  if (required[1]) std::get<1>(result) = add_rows_at(g, numbers, points.numel() / points.size(-1)).view(points.sizes());
  return result;
}

Pair offsets_backward_meta(const Tensor& grad, const Tensor& points, const Tensor& indices, Wanted required) {
  Pair result;
  if (required[0]) std::get<0>(result) = at::empty(with_rows(indices, {points.size(-1)}), grad.options());
  if (required[1]) std::get<1>(result) = at::empty(points.sizes(), grad.options());
  return result;
}

// Autograd

template <typename Signature>
c10::TypedOperatorHandle<Signature> handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}
Pair call_knn(const Tensor& query, const Tensor& points, int64_t k) {
  static const auto op = handle<decltype(knn_cpu)>("moonhalo::knn");
  return op.call(query, points, k);
}
Triple call_radius(const Tensor& query, const Tensor& points, double radius, int64_t max_neighbors) {
  static const auto op = handle<decltype(radius_cpu)>("moonhalo::radius_search");
  return op.call(query, points, radius, max_neighbors);
}
Tensor call_offsets(const Tensor& query, const Tensor& points, const Tensor& indices) {
  static const auto op = handle<decltype(offsets_cpu)>("moonhalo::neighbor_offsets");
  return op.call(query, points, indices);
}
Pair call_offsets_backward(const Tensor& grad, const Tensor& points, const Tensor& indices, Wanted required) {
  static const auto op = handle<decltype(offsets_backward_cpu)>("moonhalo::neighbor_offsets_backward");
  return op.call(grad, points, indices, required);
}
// The graph is the same on all ranks, and so is what is asked of it.
Wanted points_required(const AutogradContext* context) {
  return {context->needs_input_grad(0), context->needs_input_grad(1)};
}

// True if a call is recorded; then the tensors' gradients are brought back to their own cuts, since what a Function
// does runs without recording.
bool records(std::initializer_list<const Tensor*> tensors) {
  bool any = false;
  for (const Tensor* tensor : tensors) {
    const bool grad = c10::GradMode::is_enabled() && tensor->requires_grad();
    if (grad) install_gradient_hook(*tensor);
    any |= grad || tensor->_fw_grad(/*level=*/0).defined();
  }
  return any;
}

struct Offsets : torch::autograd::Function<Offsets> {
  static Tensor forward(AutogradContext* context, const Tensor& query, const Tensor& points, const Tensor& indices) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // A gradient that is not there would be made as zeros of the global shape.
    context->set_materialize_grads(false);
    context->save_for_backward({points, indices});
    return call_offsets(query, points, indices);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(3);
    const auto saved = context->get_saved_variables();
    // Only the shape and cut of the points are used. Without history, no gradient is made up for them.
    auto [query, points] = call_offsets_backward(grads[0], saved[0].detach(), saved[1], points_required(context));
    return {query, points, Tensor()};
  }
};

struct OffsetsBackward : torch::autograd::Function<OffsetsBackward> {
  static variable_list forward(AutogradContext* context, const Tensor& grad, const Tensor& points,
                               const Tensor& indices, Wanted required) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    context->save_for_backward({grad, points, indices});
    auto [for_query, for_points] = call_offsets_backward(grad, points, indices, required);
    // A Function has no undefined results.
    variable_list results = {for_query, for_points}, absent;
    for (Tensor& result : results) {
      if (result.defined()) continue;
      result = at::empty({0}, at::kFloat);
      absent.push_back(result);
    }
    context->mark_non_differentiable(absent);
    return results;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined() && !grads[1].defined()) return variable_list(4);
    const auto saved = context->get_saved_variables();
    const Tensor query = grads[0].defined() ? grads[0] : at::zeros_like(saved[0].detach().sum(-2));
    const Tensor points = grads[1].defined() ? grads[1] : at::zeros_like(saved[1].detach());
    return {call_offsets(query, points, saved[2]), Tensor(), Tensor(), Tensor()};
  }
};

// knn (no radius) and radius_search.
struct Search : torch::autograd::Function<Search> {
  static variable_list forward(AutogradContext* context, const Tensor& query, const Tensor& points, int64_t most,
                               std::optional<double> radius) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    variable_list results;
    if (radius) {
      auto [distances, indices, counts] = call_radius(query, points, *radius, most);
      results = {distances, indices, counts};
      context->mark_non_differentiable({indices, counts});
    } else {
      auto [distances, indices] = call_knn(query, points, most);
      results = {distances, indices};
      context->mark_non_differentiable({indices});
    }
    context->save_for_backward({query, points, results[1]});
    return results;
  }
  // Zero where the distance is zero; the offsets of missing neighbours are zero too.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(4);
    const auto saved = context->get_saved_variables();
    const Tensor offsets = call_offsets(saved[0], saved[1], saved[2]);
    const Tensor squared = offsets.square().sum(-1), apart = squared.gt(0);
    const Tensor one = at::ones({}, squared.options().device(at::kCPU));
    const Tensor scale = at::where(apart, grads[0] / at::where(apart, squared, one).sqrt(), one * 0);
    auto [query, points] =
        call_offsets_backward(scale.unsqueeze(-1) * offsets, saved[1].detach(), saved[2], points_required(context));
    return {query, points, Tensor(), Tensor()};
  }
};

Pair knn_autograd(const Tensor& query, const Tensor& points, int64_t k) {
  if (!records({&query, &points})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_knn(query, points, k);
  }
  const auto results = Search::apply(query, points, k, std::nullopt);
  return {results[0], results[1]};
}

Triple radius_autograd(const Tensor& query, const Tensor& points, double radius, int64_t max_neighbors) {
  if (!records({&query, &points})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_radius(query, points, radius, max_neighbors);
  }
  const auto results = Search::apply(query, points, max_neighbors, radius);
  return {results[0], results[1], results[2]};
}

Tensor offsets_autograd(const Tensor& query, const Tensor& points, const Tensor& indices) {
  if (records({&query, &points})) return Offsets::apply(query, points, indices);
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_offsets(query, points, indices);
}

Pair offsets_backward_autograd(const Tensor& grad, const Tensor& points, const Tensor& indices, Wanted required) {
  if (records({&grad})) {
    const auto results = OffsetsBackward::apply(grad, points, indices, required);
    return {required[0] ? results[0] : Tensor(), required[1] ? results[1] : Tensor()};
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_offsets_backward(grad, points, indices, required);
}

TORCH_LIBRARY_FRAGMENT(moonhalo, library) {
  library.def("knn(Tensor query, Tensor points, int k) -> (Tensor distances, Tensor indices)");
  library.def(
      "radius_search(Tensor query, Tensor points, float radius, int max_neighbors) -> "
      "(Tensor distances, Tensor indices, Tensor counts)");
  library.def("neighbor_offsets(Tensor query, Tensor points, Tensor indices) -> Tensor");
  library.def(
      "neighbor_offsets_backward(Tensor grad, Tensor points, Tensor indices, bool[2] output_mask) "
      "-> "
      "(Tensor grad_query, Tensor grad_points)");
  const auto implement = [&](const char* name, auto* cpu, auto* meta, auto* autograd) {
    library.impl(name, c10::DispatchKey::CPU, cpu);
    library.impl(name, c10::DispatchKey::Meta, meta);
    library.impl(name, c10::DispatchKey::Autograd, autograd);
  };
  implement("knn", &knn_cpu, &knn_meta, &knn_autograd);
  implement("radius_search", &radius_cpu, &radius_meta, &radius_autograd);
  implement("neighbor_offsets", &offsets_cpu, &offsets_meta, &offsets_autograd);
  implement("neighbor_offsets_backward", &offsets_backward_cpu, &offsets_backward_meta, &offsets_backward_autograd);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> knn(const at::Tensor& query, const at::Tensor& points, int64_t k) {
  return call_knn(query, points, k);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> radius_search(const at::Tensor& query, const at::Tensor& points,
                                                             double radius, int64_t max_neighbors) {
  return call_radius(query, points, radius, max_neighbors);
}

at::Tensor neighbor_offsets(const at::Tensor& query, const at::Tensor& points, const at::Tensor& indices) {
  return call_offsets(query, points, indices);
}

}  // namespace moonhalo
