// SPDX-License-Identifier: Apache-2.0
// Finite differences: an operator that is linear, its adjoint, and their rule on the interval map. Blocks stay as
// they are; rows from the lowest to the highest offset are fetched, and backward their gradients are sent back.
#include "moonhalo/ops/window/stencil.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <memory>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "moonhalo/ops/window/stencil_rows.h"

namespace moonhalo {
namespace {

using Text = std::optional<std::string_view>;
using Ints = at::OptionalIntArrayRef;
using Doubles = std::optional<at::ArrayRef<double>>;

Stencil stencil_of(int64_t dim, int64_t derivative, int64_t order, double spacing, Text boundary, Ints offsets,
                   Doubles weights) {
  Stencil options{dim, derivative, order, spacing};
  if (boundary) options.boundary = std::string(*boundary);
  if (offsets) options.offsets = offsets->vec();
  if (weights) options.weights = weights->vec();
  return options;
}

template <bool adjoint>
at::Tensor run_plain(const at::Tensor& x, int64_t dim, int64_t derivative, int64_t order, double spacing, Text boundary,
                     Ints offsets, Doubles weights) {
  const StencilRows rows(stencil_of(dim, derivative, order, spacing, boundary, offsets, weights), x.sizes(),
                         x.scalar_type());
  return adjoint ? rows.adjoint_whole(x) : rows.apply_whole(x);
}

at::Tensor run_meta(const at::Tensor& x, int64_t dim, int64_t derivative, int64_t order, double spacing, Text boundary,
                    Ints offsets, Doubles weights) {
  StencilRows(stencil_of(dim, derivative, order, spacing, boundary, offsets, weights), x.sizes(), x.scalar_type());
  return at::empty(x.sizes(), x.options());
}

at::Tensor stencil_call(bool adjoint, const at::Tensor& x, const Stencil& options) {
  static const auto forward =
      c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo::stencil", "").typed<decltype(run_meta)>();
  static const auto backward =
      c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo::stencil_backward", "").typed<decltype(run_meta)>();
  Text boundary;
  Ints offsets;
  Doubles weights;
  if (options.boundary) boundary = *options.boundary;
  if (options.offsets) offsets = at::IntArrayRef(*options.offsets);
  if (options.weights) weights = at::ArrayRef<double>(*options.weights);
  return (adjoint ? backward : forward)
      .call(x, options.dim, options.derivative, options.order, options.spacing, boundary, offsets, weights);
}

// Each is the other's derivative. What it does runs without recording, so the boundary is guarded here.
template <bool adjoint>
at::Tensor record(const at::Tensor& x, int64_t dim, int64_t derivative, int64_t order, double spacing, Text boundary,
                  Ints offsets, Doubles weights) {
  const Stencil options = stencil_of(dim, derivative, order, spacing, boundary, offsets, weights);
  at::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    result = stencil_call(adjoint, x, options);
  }
  if (c10::GradMode::is_enabled() && x.requires_grad()) install_gradient_hook(x);
  attach_backward(
      x, result, [options](const at::Tensor& grad) { return stencil_call(!adjoint, grad, options); },
      [options](const at::Tensor& tangent) { return stencil_call(adjoint, tangent, options); });
  return result;
}

// On blocks

template <typename T>
std::optional<std::vector<T>> list_of(const c10::IValue& value) {
  if (value.isNone()) return std::nullopt;
  return value.to<std::vector<T>>();
}

template <bool adjoint>
std::optional<Plan> plan_stencil(const OpCall& call) {
  const SpecPtr self = resolve_nonlinear(call.spec("self"));
  const Stencil options{call.integer("dim"),
                        call.integer("derivative"),
                        call.integer("order"),
                        call.value("spacing").toDouble(),
                        call.value("boundary").toOptional<std::string>(),
                        list_of<int64_t>(call.value("offsets")),
                        list_of<double>(call.value("weights"))};
  const StencilRows rows(options, self->global_shape(), call.tensor("self").dtype);
  Plan plan = unary_plan(call, self, {self});
  const int64_t dim = rows.dim();
  if (!spans_ranks(self, dim)) {
    plan.run = [rows, at_self = call.arg("self")](LocalCall& call) {
      const at::Tensor local = call.tensor(at_self);
      call.give(adjoint ? rows.adjoint_whole(local) : rows.apply_whole(local));
    };
    return plan;
  }
  const auto along = [&](int64_t d, const Interval& owned, const Interval&) {
    return d == dim ? HaloRequest{rows.needed(owned), rows.boundary()} : HaloRequest{owned};
  };
  auto map = std::make_shared<const IntervalMap>(self, GridRequests{self, along});
  plan.run = [rows, map, out = self->block_range(dim, self->mesh()->rank()),
              at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor local = call.tensor(at_self);
    at::Tensor result = adjoint ? scatter_add(*map, rows.adjoint(local, out))
                                : rows.apply(gather(*map, local, 0, call.halo_source(at_self)), out);
    call.give(std::move(result));
  };
  return plan;
}

// Derivatives of fields

double spacing_of(const char* op, at::ArrayRef<double> spacing, size_t dims, size_t i) {
  TORCH_CHECK_VALUE(spacing.size() == 1 || spacing.size() == dims, op, ": ", spacing.size(), " spacings for ", dims,
                    " dims\n  have  spacing ", spacing, "\n  fix   give one for all dims, or one for each");
  return spacing[spacing.size() == 1 ? 0 : i];
}

std::vector<at::Tensor> derivatives(const char* op, const at::Tensor& x, at::IntArrayRef dims, int64_t derivative,
                                    int64_t order, at::ArrayRef<double> spacing, Text boundary) {
  TORCH_CHECK_VALUE(!dims.empty(), op, ": no dims\n  have  dims = {}\n  fix   name the dims of space");
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < dims.size(); ++i)
    results.push_back(stencil_call(
        false, x, stencil_of(dims[i], derivative, order, spacing_of(op, spacing, dims.size(), i), boundary, {}, {})));
  return results;
}

at::Tensor sum_of(const std::vector<at::Tensor>& terms) {
  at::Tensor sum = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) sum = sum + terms[i];
  return sum;
}

std::vector<at::Tensor> gradient_op(const at::Tensor& x, at::IntArrayRef dims, int64_t order,
                                    at::ArrayRef<double> spacing, Text boundary) {
  return derivatives("stencil_gradient", x, dims, 1, order, spacing, boundary);
}

at::Tensor laplacian_op(const at::Tensor& x, at::IntArrayRef dims, int64_t order, at::ArrayRef<double> spacing,
                        Text boundary) {
  return sum_of(derivatives("laplacian", x, dims, 2, order, spacing, boundary));
}

at::Tensor divergence_op(at::TensorList fields, at::IntArrayRef dims, int64_t order, at::ArrayRef<double> spacing,
                         Text boundary) {
  TORCH_CHECK_VALUE(!dims.empty() && fields.size() == dims.size(), "divergence: ", fields.size(), " fields for ",
                    dims.size(), " dims\n  have  dims ", dims, "\n  fix   give one field for each dim");
  std::vector<at::Tensor> terms;
  for (size_t i = 0; i < dims.size(); ++i)
    terms.push_back(stencil_call(
        false, fields[i],
        stencil_of(dims[i], 1, order, spacing_of("divergence", spacing, dims.size(), i), boundary, {}, {})));
  return sum_of(terms);
}

TORCH_LIBRARY_FRAGMENT(moonhalo, library) {
  for (const bool adjoint : {false, true}) {
    const std::string name = adjoint ? "stencil_backward" : "stencil";
    const std::string schema = name +
                               "(Tensor self, *, int dim, int derivative=1, int order=2, float "
                               "spacing=1.0, str? boundary=None, "
                               "int[]? offsets=None, float[]? weights=None) -> Tensor";
    library.def(schema.c_str());
    for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA})
      library.impl(name.c_str(), key, adjoint ? &run_plain<true> : &run_plain<false>);
    library.impl(name.c_str(), c10::DispatchKey::Meta, &run_meta);
    library.impl(name.c_str(), c10::DispatchKey::Autograd, adjoint ? &record<true> : &record<false>);
  }
  const std::string options = "*, int[] dims, int order=2, float[1] spacing=1.0, str? boundary=None) -> ";
  library.def(("stencil_gradient(Tensor self, " + options + "Tensor[]").c_str(), &gradient_op);
  library.def(("laplacian(Tensor self, " + options + "Tensor").c_str(), &laplacian_op);
  library.def(("divergence(Tensor[] fields, " + options + "Tensor").c_str(), &divergence_op);
}

constexpr const char* kStencilSource = "B. Fornberg, Mathematics of Computation 51, 1988";
constexpr const char* kStencilSupports = "any cut, kept";

const Register stencil_rules{
    {.op = "moonhalo::stencil",
     .plan = plan_stencil<false>,
     .source = kStencilSource,
     .supports = kStencilSupports,
     .traffic = Traffic::kHalo},
    {.op = "moonhalo::stencil_backward",
     .plan = plan_stencil<true>,
     .source = kStencilSource,
     .supports = kStencilSupports,
     .traffic = Traffic::kHalo},
};

}  // namespace

at::Tensor stencil(const at::Tensor& x, const Stencil& options) { return stencil_call(false, x, options); }

std::vector<at::Tensor> stencil_gradient(const at::Tensor& x, at::IntArrayRef dims, int64_t order,
                                         at::ArrayRef<double> spacing, const std::optional<std::string>& boundary) {
  return gradient_op(x, dims, order, spacing, boundary ? Text(*boundary) : Text());
}

at::Tensor divergence(at::TensorList fields, at::IntArrayRef dims, int64_t order, at::ArrayRef<double> spacing,
                      const std::optional<std::string>& boundary) {
  return divergence_op(fields, dims, order, spacing, boundary ? Text(*boundary) : Text());
}

at::Tensor laplacian(const at::Tensor& x, at::IntArrayRef dims, int64_t order, at::ArrayRef<double> spacing,
                     const std::optional<std::string>& boundary) {
  return laplacian_op(x, dims, order, spacing, boundary ? Text(*boundary) : Text());
}

}  // namespace moonhalo
