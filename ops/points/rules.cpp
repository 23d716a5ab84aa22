// SPDX-License-Identifier: Apache-2.0
// Point clouds on blocks: blocks of points or the queries go round (ring_search.h); afterwards only rows that are
// asked for are sent. The kernels are the host's: blocks of a device are brought there, and are sent from host to
// host.
#include <ATen/ATen.h>

#include <memory>

#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/ops/points/arguments.h"
#include "moonhalo/ops/points/ring_search.h"
#include "moonhalo/ops/points/row_routing.h"

namespace moonhalo {
namespace {

std::optional<Plan> plan_search(const OpCall& call, const char* op, int64_t most, std::optional<double> radius) {
  const SpecPtr query = call.spec("query"), points = call.spec("points");
  check_points(op, query->global_shape(), points->global_shape(), call.tensor("query").dtype,
               call.tensor("points").dtype);
  const PointCuts cuts(query, points);
  const SpecPtr lists = cuts.like_query({most}), counts = cuts.like_query({});
  Plan plan;
  plan.inputs = {cuts.query, cuts.points};
  plan.outputs = {lists, lists};
  if (radius) plan.outputs.push_back(counts);
  plan.run = [round = std::make_shared<const PointRound>(cuts, most, radius, call.tensor("query").dtype),
              with_counts = radius.has_value(), shape = lists->local_shape(), rows = counts->local_shape(),
              at_query = call.arg("query"), at_points = call.arg("points")](LocalCall& call) {
    const at::Tensor query = call.tensor(at_query);
    const NeighborLists found = round->search(query.cpu(), call.tensor(at_points).cpu());
    const auto back = [&](const at::Tensor& made, const std::vector<int64_t>& as) {
      return made.view(as).to(query.device());
    };
    at::Tensor distances = back(found.distances(), shape), indices = back(found.indices(), shape);
    if (with_counts) return call.give(distances, indices, back(found.counts(), rows));
    call.give(distances, indices);
  };
  return plan;
}

std::optional<Plan> plan_knn(const OpCall& call) {
  const int64_t k = call.integer("k");
  const auto& points = call.spec("points")->global_shape();
  if (points.size() >= 2) check_most("knn", "k", k, points[points.size() - 2]);
  return plan_search(call, "knn", k, std::nullopt);
}

std::optional<Plan> plan_radius(const OpCall& call) {
  const double radius = call.value("radius").toDouble();
  check_radius(radius, call.integer("max_neighbors"));
  return plan_search(call, "radius_search", call.integer("max_neighbors"), radius);
}

std::optional<Plan> plan_offsets(const OpCall& call) {
  const SpecPtr query = call.spec("query"), points = call.spec("points"), indices = call.spec("indices");
  check_points("neighbor_offsets", query->global_shape(), points->global_shape(), call.tensor("query").dtype,
               call.tensor("points").dtype);
  const auto& shape = query->global_shape();
  check_indices(at::IntArrayRef(shape).slice(0, shape.size() - 1), indices->global_shape(),
                call.tensor("indices").dtype);
  // The indices are mostly a search's, cut as it left them.
  const PointCuts cuts(indices->has_cut() ? indices : query, points);
  const int64_t neighbors = indices->global_shape().back(), features = shape.back();
  const SpecPtr output = cuts.like_query({neighbors, features});
  Plan plan;
  plan.inputs = {cuts.like_query({features}), cuts.points, cuts.like_query({neighbors})};
  plan.outputs = {output};
  plan.run = [cuts, batch = points->ndim() - 2, shape = output->local_shape(), at_indices = call.arg("indices"),
              at_points = call.arg("points"), at_query = call.arg("query")](LocalCall& call) {
    const at::Tensor query = call.tensor(at_query), index = one_batch(call.tensor(at_indices).cpu(), batch);
    const PointRoute route(cuts, index, "neighbor_offsets");
    const at::Tensor rows = route.fetch(one_batch(call.tensor(at_points).cpu(), batch));
    call.give(offsets_of(rows, one_batch(query.cpu(), batch), index).view(shape).to(query.device()));
  };
  return plan;
}

std::optional<Plan> plan_offsets_backward(const OpCall& call) {
  const SpecPtr grad = call.spec("grad"), points = call.spec("points"), indices = call.spec("indices");
  const int64_t neighbors = indices->global_shape().back(), features = points->global_shape().back();
  const PointCuts cuts(indices->has_cut() ? indices : grad, points);
  const SpecPtr query = cuts.like_query({features});
  Plan plan;
  plan.inputs = {cuts.like_query({neighbors, features}), nullptr, cuts.like_query({neighbors})};
  const auto required = call.value("output_mask").toBoolList();
  const bool for_query = required[0], for_points = required[1];
  plan.outputs = {for_query ? query : SpecPtr(), for_points ? cuts.sum_like_points() : SpecPtr()};
  plan.run = [cuts, for_query, for_points, batch = points->ndim() - 2, query = query->local_shape(),
              home = cuts.points->local_shape(), at_grad = call.arg("grad"),
              at_indices = call.arg("indices")](LocalCall& call) {
    const at::Tensor grad = call.tensor(at_grad);
    const at::Tensor g = one_batch(grad.cpu(), batch), index = one_batch(call.tensor(at_indices).cpu(), batch);
    at::Tensor of_query, of_points;
    if (for_points) of_points = PointRoute(cuts, index, "neighbor_offsets").add(g).view(home).to(grad.device());
    if (for_query) of_query = query_gradient(g, index).view(query).to(grad.device());
    call.give(std::move(of_query), std::move(of_points));
  };
  return plan;
}

constexpr const char* kAny = "any cut of batch, queries and points; cut coordinates are gathered";
constexpr const char* kRows = "any cut";

const Register points_rules{
    {.op = "moonhalo::knn",
     .plan = plan_knn,
     .source = "at::cdist and topk",
     .supports = kAny,
     .traffic = Traffic::kRing},
    {.op = "moonhalo::radius_search",
     .plan = plan_radius,
     .source = "PyTorch3D ball_query, nearest first",
     .supports = kAny,
     .traffic = Traffic::kRing},
    {.op = "moonhalo::neighbor_offsets",
     .plan = plan_offsets,
     .source = "PyTorch index and sub",
     .supports = kRows,
     .traffic = Traffic::kDataDependent},
    {.op = "moonhalo::neighbor_offsets_backward",
     .plan = plan_offsets_backward,
     .source = "its adjoint",
     .supports = kRows,
     .traffic = Traffic::kDataDependent},
};

}  // namespace
}  // namespace moonhalo
