// SPDX-License-Identifier: Apache-2.0
// Linear algebra on batches: every matrix is whole on one rank, the batch stays cut. Cut matrix dims are gathered.
#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/ops/support/letters.h"
#include "moonhalo/ops/support/reductions.h"

namespace moonhalo {
namespace {

using Shape = std::vector<int64_t>;

// LibTorch tells a batch of vectors from matrices in this way.
bool is_vector(const ShardSpec& matrix, const ShardSpec& right) {
  const Shape &a = matrix.global_shape(), &b = right.global_shape();
  return b.size() == 1 || (b.size() + 1 == a.size() && std::equal(b.begin(), b.end(), a.begin()));
}

// Batch dims, behind which every tensor has its own, a letter each: "mn,k". 'k' is the lesser of m and n where no input
// names it, '?' a right-hand side of n or [n, k], '0' an empty vector.
class Batch {
 public:
  Batch(const OpCall& call, const std::vector<std::string_view>& parts) : call_(call) {
    for (size_t s = 0; s < call.slots().size(); ++s) {
      const SpecPtr& spec = call.slots()[s].spec;
      cores_.push_back(!spec             ? 0
                       : parts[s] == "?" ? (is_vector(*call.spec("A"), *spec) ? 1 : 2)
                                         : static_cast<int64_t>(parts[s].size()));
      if (!spec) continue;
      const int64_t count = spec->ndim() - cores_.back();
      // LibTorch has the better words for a tensor of too few dims.
      if (count < 0) call.output_shapes();
      TORCH_CHECK_VALUE(count >= 0, call.name(), ": a tensor of ", spec->ndim(), " dims where one of at least ",
                        cores_.back(), " is expected\n  have  ", call.describe());
      widen(Shape(spec->global_shape().begin(), spec->global_shape().begin() + count));
      for (int64_t d = 0; parts[s] != "?" && d < cores_.back(); ++d)
        extents_.match_extent(parts[s][d], spec->global_shape()[count + d]);
    }
  }

  Shape result(std::string_view letters) const {
    if (letters == "0") return {0};
    Shape shape = shape_;
    for (const char letter : letters) shape.push_back(extent(letter));
    return shape;
  }

  Plan plan(const std::vector<Shape>& results) const {
    Axes axes;
    const auto batch = static_cast<int64_t>(shape_.size());
    axes.kinds.assign(batch, AxisKind::kKeep);
    for (size_t s = 0; s < cores_.size(); ++s) {
      const SpecPtr& spec = call_.slots()[s].spec;
      std::vector<int> dims(spec ? spec->ndim() : 0, -1);
      const int64_t count = static_cast<int64_t>(dims.size()) - cores_[s];
      for (int64_t d = 0; spec && d < count; ++d) {
        const int64_t axis = batch - count + d;
        if (spec->global_shape()[d] == shape_[axis]) dims[d] = static_cast<int>(axis);
      }
      axes.inputs.push_back(std::move(dims));
    }
    for (const Shape& shape : results) {
      std::vector<int> dims(shape.size(), -1);
      const bool batched = shape.size() >= shape_.size() && std::equal(shape_.begin(), shape_.end(), shape.begin());
      for (int64_t d = 0; batched && d < batch; ++d) dims[d] = static_cast<int>(d);
      axes.outputs.push_back(std::move(dims));
      axes.output_shapes.push_back(shape);
    }
    return solve(call_, axes);
  }

 private:
  void widen(const Shape& other) {
    if (other.size() > shape_.size()) shape_.insert(shape_.begin(), other.size() - shape_.size(), 1);
    for (size_t d = 0; d < other.size(); ++d) {
      int64_t& mine = shape_[shape_.size() - other.size() + d];
      TORCH_CHECK_VALUE(mine == other[d] || mine == 1 || other[d] == 1, call_.name(),
                        ": the batches do not broadcast\n  have  ", call_.describe());
      if (mine == 1) mine = other[d];
    }
  }

  int64_t extent(char letter) const {
    return extents_.has(letter) ? extents_.at(letter) : std::min(extents_.at('m'), extents_.at('n'));
  }

  const OpCall& call_;
  Shape shape_;
  std::vector<int64_t> cores_;  // per slot: dims behind the batch
  LetterExtents extents_;
};

// Without an arrow the operator's own shape function is asked.
std::optional<Plan> plan_batched(const OpCall& call, const Letters& dims) {
  std::vector<Shape> results;
  if (!dims.outputs) {
    for (auto& shape : call.output_shapes()) results.push_back(shape.value_or(Shape{0}));
    return Batch(call, dims.inputs).plan(results);
  }
  const Batch batch(call, dims.inputs);
  for (const auto letters : *dims.outputs) results.push_back(batch.result(letters));
  return batch.plan(results);
}

// The ranks of all matrices decide whether gelss and gelsd give residuals, so these two see the whole batch.
std::optional<Plan> plan_lstsq(const OpCall& call) {
  const SpecPtr &a = call.spec("self"), &b = call.spec("b");
  const std::string driver = call.given("driver") ? call.value("driver").toStringRef() : "gelsy";
  if (driver == "gelss" || driver == "gelsd" || a->ndim() < 2) {
    return Plan{.inputs = {replicated(call.mesh(), a->global_shape()), replicated(call.mesh(), b->global_shape())},
                .outputs = {}};
  }
  const bool vector = is_vector(*a, *b);
  const int64_t m = a->global_shape()[a->ndim() - 2], n = a->global_shape().back();
  const Batch batch(call, {"mn", vector ? "m" : "mk"});
  const Shape none{0}, solution = batch.result(vector ? "n" : "nk");
  const bool residuals = driver == "gels" && m > n;
  return batch.plan({solution, residuals ? batch.result(vector ? "" : "k") : none,
                     driver == "gelsy" ? batch.result("") : none, none});
}

// Every rank looks at its own matrices; the message counts them as in the whole batch.
std::optional<Plan> plan_check_errors(const OpCall& call) {
  const SpecPtr info = without_partial(call.spec("info"));
  Plan plan{.inputs = {info}, .outputs = {}};
  if (!info->has_cut()) return plan;
  plan.run = [info, at_info = call.arg("info")](LocalCall& call) {
    c10::IValue& value = call.value(at_info);
    const at::Tensor mine = value.toTensor();
    if (!mine.any().item<bool>()) return call.give();
    at::Tensor all = at::zeros(info->global_shape(), mine.options()), block = all;
    for (int64_t d = 0; d < info->ndim(); ++d) block = block.narrow(d, info->offsets()[d], mine.size(d));
    block.copy_(mine);
    value = all;
    call.run();
  };
  return plan;
}

// Three components along `dim`, which is whole.
std::optional<Plan> plan_cross(const OpCall& call) {
  const auto shape = call.output_shapes()[0].value();
  Axes axes = broadcast_axes(call);
  axes.kinds[call.dim("dim", static_cast<int64_t>(shape.size()))] = AxisKind::kUncut;
  axes.linear = {PartialUse::kOneFactor, PartialUse::kOneFactor};
  return solve(call, axes);
}

Rule batch_rule(OperatorNames op, std::string_view dims) {
  return {.op = std::move(op),
          .plan = [dims = Letters(dims)](const OpCall& call) { return plan_batched(call, dims); },
          .supports = "any cut of the batch; cut matrix dims are gathered"};
}

const Register linalg_rules{
    batch_rule({"aten::cholesky", "aten::cholesky_inverse", "aten::linalg_matrix_exp"}, "nn->nn"),
    batch_rule({"aten::cholesky_solve", "aten::_cholesky_solve_helper"}, "nk,nn->nk"),
    batch_rule({"aten::linalg_cholesky_ex", "aten::linalg_inv_ex", "aten::_linalg_det", "aten::_linalg_slogdet",
                "aten::linalg_ldl_factor_ex", "aten::_linalg_eigh"},
               "nn"),
    batch_rule("aten::_linalg_solve_ex", "nn,?"),
    batch_rule("aten::linalg_solve_triangular", "nn,pq->pq"),
    batch_rule("aten::triangular_solve", "nk,nn"),
    batch_rule({"aten::linalg_lu_factor_ex", "aten::linalg_lu", "aten::linalg_qr", "aten::_linalg_svd"}, "mn"),
    batch_rule("aten::linalg_lu_solve", "nn,n,pq"),
    batch_rule("aten::lu_unpack", "mn,k"),
    batch_rule("aten::linalg_ldl_solve", "nn,n,nk"),
    batch_rule("aten::geqrf", "mn->mn,k"),
    batch_rule("aten::linalg_householder_product", "mn,k->mn"),
    batch_rule("aten::ormqr", "mn,k,pq->pq"),
    batch_rule("aten::linalg_eig", "nn->n,nn"),
    batch_rule("aten::_linalg_eigvals", "nn->n"),
    batch_rule("aten::linalg_pinv.atol_rtol_tensor", "mn,,->nm"),
    {.op = "aten::linalg_lstsq",
     .plan = plan_lstsq,
     .supports = "any cut of the batch with gels and gelsy; otherwise gathered"},
    {.op = "aten::_linalg_check_errors", .plan = plan_check_errors, .supports = "any cut"},
    {.op = "aten::linalg_cross", .plan = plan_cross, .supports = "any cut of the other dims"},
};

}  // namespace
}  // namespace moonhalo
