// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/testing/values.h"

#include <ATen/ATen.h>

#include <cmath>
#include <sstream>

#include "moonhalo/engine/base/splitmix.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo::testing {
namespace {

at::Tensor uniform(at::IntArrayRef shape, int64_t seed) {
  at::Tensor result = at::empty(shape, at::kDouble);
  double* data = result.mutable_data_ptr<double>();
  for (int64_t i = 0; i < result.numel(); ++i) {
    const uint64_t bits = splitmix64(splitmix64(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(i));
    data[i] = 2 * (static_cast<double>(bits >> 11) * 0x1p-53) - 1;
  }
  return result;
}

// Returns what rank `coordinate` of `ranks` holds of a value that is Partial(op) over them.
at::Tensor addend(const at::Tensor& value, ReduceOp op, int64_t coordinate, int64_t ranks) {
  const auto noise = [&](int64_t c) { return make_tensor(value.sizes(), 1000 + c, value.scalar_type()); };
  at::Tensor result = value.clone();
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      if (coordinate < ranks - 1) {
        result = noise(coordinate);
      } else {
        for (int64_t c = 0; c < ranks - 1; ++c) result = result - noise(c);
      }
      return op == ReduceOp::kAvg ? result * ranks : result;
    case ReduceOp::kMax:
    case ReduceOp::kMin: {
      const at::Tensor owner = at::arange(value.numel(), at::kLong).view(value.sizes()).remainder(ranks);
      const at::Tensor worse = op == ReduceOp::kMax ? value - 1 : value + 1;
      return at::where(owner.eq(coordinate), value, worse);
    }
    case ReduceOp::kProduct:
      return coordinate == 0 ? result * std::pow(2.0, ranks - 1) : at::full_like(value, 0.5);
  }
  return result;
}

}  // namespace

at::Tensor make_tensor(at::IntArrayRef shape, int64_t seed, at::ScalarType dtype) {
  if (dtype == at::kBool) return uniform(shape, seed).gt(0);
  if (at::isComplexType(dtype)) return at::complex(uniform(shape, seed), uniform(shape, ~seed)).to(dtype);
  if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    const double shift = dtype == at::kByte ? 5.5 : 0.5;
    return (uniform(shape, seed) * 5.5 + shift).floor().to(dtype);
  }
  return uniform(shape, seed).to(dtype);
}

at::Tensor shard_of(const at::Tensor& full, const MeshPtr& mesh, const std::vector<Placement>& placements) {
  const at::NoGradGuard no_grad;
  const SpecPtr spec = placements.empty() ? replicated(mesh, full.sizes()) : make_spec(mesh, full.sizes(), placements);
  at::Tensor local = full.detach().cpu();
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    if (const auto& op = spec->partial(m)) local = addend(local, *op, mesh->coordinate(m), mesh->size(m));
  }
  for (int64_t d = 0; d < spec->ndim(); ++d) local = local.narrow(d, spec->offsets()[d], spec->local_shape()[d]);
  return from_local(local.clone().to(device_of(*mesh)), spec);
}

std::string difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  if (actual.defined() && !is_shard_tensor(actual) && !actual.is_cpu())
    return difference(actual.cpu(), expected, tolerance);
  std::ostringstream out;
  if (actual.defined() != expected.defined()) {
    out << (actual.defined() ? "a tensor where none is expected" : "missing");
  } else if (!actual.defined()) {
    return "";
  } else if (actual.sizes() != expected.sizes()) {
    out << "shape " << actual.sizes() << " instead of " << expected.sizes();
  } else if (actual.scalar_type() != expected.scalar_type()) {
    out << "dtype " << actual.scalar_type() << " instead of " << expected.scalar_type();
  } else if (!at::allclose(actual, expected, tolerance, tolerance, /*equal_nan=*/true)) {
    const bool complex = expected.is_complex();
    const auto wide = [&](const at::Tensor& t) { return t.detach().to(complex ? at::kComplexDouble : at::kDouble); };
    const at::Tensor error = (wide(actual) - wide(expected)).abs().flatten();
    const int64_t at = error.nan_to_num(INFINITY).argmax().item<int64_t>();
    const auto value = [&](const at::Tensor& t) {
      std::ostringstream text;
      text.precision(12);
      if (complex) {
        text << wide(t).flatten()[at].item().toComplexDouble();
      } else {
        text << wide(t).flatten()[at].item<double>();
      }
      return text.str();
    };
    // tests/support/second_tries.py looks for these words.
    out << "element " << at << " of " << expected.sizes() << " differs from plain: " << value(actual) << " instead of "
        << value(expected) << " (" << error.gt(tolerance).sum().item<int64_t>() << " differ)";
  }
  return out.str();
}

}  // namespace moonhalo::testing
