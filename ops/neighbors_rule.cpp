// SPDX-License-Identifier: Apache-2.0
// Point clouds on blocks: queries stay, blocks of points go round the ranks that share them.
//
//     ranks      0     1     2         step 0: each searches its own block, while the next one comes from the right
//     queries    q0    q1    q2        step 1: q0 in p1, q1 in p2, q2 in p0, while ...
//     points     p0 <- p1 <- p2 <- p0
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "engine/rules.h"
#include "ops/neighbors_check.h"
#include "ops/point_rows.h"
#include "ops/point_search.h"

namespace moonhalo {
namespace {

// One search by one rank: which block it holds, from whom the next ones come.
struct Round {
  std::vector<std::pair<int64_t, int64_t>> blocks;
  int64_t own = 0;
  int from = 0, to = 0;
  int64_t batch_dims, most;
  std::optional<double> radius;
  MeshPtr mesh;

  Round(const PointCuts& cuts, int64_t most_, std::optional<double> radius_)
      : blocks(cuts.blocks()),
        batch_dims(cuts.points->ndim() - 2),
        most(most_),
        radius(radius_),
        mesh(cuts.points->mesh()) {
    const auto holders = cuts.holders();
    const auto count = static_cast<int64_t>(holders.size());
    own = cuts.points->block_index(batch_dims, mesh->rank());
    from = holders[(own + 1) % count];
    to = holders[(own + count - 1) % count];
  }

  int64_t rows(int64_t block) const { return blocks[block].second - blocks[block].first; }

  NeighborLists search(const at::Tensor& query, const at::Tensor& points) const {
    const at::Tensor q = one_batch(query, batch_dims);
    at::Tensor block = one_batch(points, batch_dims);
    NeighborLists lists(q.size(0), q.size(1), most, radius, q.scalar_type());
    const auto count = static_cast<int64_t>(blocks.size());
    for (int64_t step = 0; step < count; ++step) {
      const int64_t held = (own + step) % count, next = (held + 1) % count;
      at::Tensor arriving;
      WorkPtr work;
      if (step + 1 < count) {
        arriving = at::empty({block.size(0), rows(next), block.size(2)}, block.options());
        std::vector<Message> sends, receives;
        if (block.numel() > 0) sends.push_back({to, block});
        if (arriving.numel() > 0) receives.push_back({from, arriving});
        work = mesh->group().exchange_async(std::move(sends), std::move(receives));
      }
      lists.search(q, block, blocks[held].first);
      if (work) work->wait();
      if (step + 1 < count) block = arriving;
    }
    lists.finish();
    return lists;
  }
};

std::optional<Plan> plan_search(const OpCall& call, const char* op, int64_t most,
                                std::optional<double> radius) {
  const SpecPtr query = call.spec("query"), points = call.spec("points");
  check_points(op, query->global_shape(), points->global_shape(), call.slots()[0].dtype,
               call.slots()[1].dtype);
  const PointCuts cuts(query, points);
  const SpecPtr lists = cuts.like_query({most}), counts = cuts.like_query({});
  Plan plan;
  plan.inputs = {cuts.query, cuts.points};
  plan.outputs = {lists, lists};
  if (radius) plan.outputs.push_back(counts);
  plan.run = [round = std::make_shared<const Round>(cuts, most, radius),
              shape = lists->local_shape(),
              rows = counts->local_shape()](const c10::OperatorHandle& op, Stack& stack) {
    const NeighborLists found =
        round->search(argument(op, stack, 0).toTensor(), argument(op, stack, 1).toTensor());
    at::Tensor distances = found.distances().view(shape), indices = found.indices().view(shape);
    if (round->radius) return finish(op, stack, distances, indices, found.counts().view(rows));
    finish(op, stack, distances, indices);
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
  const SpecPtr query = call.spec("query"), points = call.spec("points"),
                indices = call.spec("indices");
  check_points("neighbor_offsets", query->global_shape(), points->global_shape(),
               call.slots()[0].dtype, call.slots()[1].dtype);
  const auto& shape = query->global_shape();
  check_indices(at::IntArrayRef(shape).slice(0, shape.size() - 1), indices->global_shape(),
                call.slots()[2].dtype);
  // The indices are mostly a search's, cut as it left them.
  const PointCuts cuts(indices->has_cut() ? indices : query, points);
  const int64_t neighbors = indices->global_shape().back(), features = shape.back();
  const SpecPtr output = cuts.like_query({neighbors, features});
  Plan plan;
  plan.inputs = {cuts.like_query({features}), cuts.points, cuts.like_query({neighbors})};
  plan.outputs = {output};
  plan.run = [cuts, batch = points->ndim() - 2, shape = output->local_shape()](
                 const c10::OperatorHandle& op, Stack& stack) {
    const at::Tensor index = one_batch(argument(op, stack, 2).toTensor(), batch);
    const PointRoute route(cuts, index, "neighbor_offsets");
    const at::Tensor rows = route.fetch(one_batch(argument(op, stack, 1).toTensor(), batch));
    finish(
        op, stack,
        offsets_of(rows, one_batch(argument(op, stack, 0).toTensor(), batch), index).view(shape));
  };
  return plan;
}

std::optional<Plan> plan_offsets_backward(const OpCall& call) {
  const SpecPtr grad = call.spec("grad"), points = call.spec("points"),
                indices = call.spec("indices");
  const int64_t neighbors = indices->global_shape().back(),
                features = points->global_shape().back();
  const PointCuts cuts(indices->has_cut() ? indices : grad, points);
  const SpecPtr query = cuts.like_query({features});
  Plan plan;
  plan.inputs = {cuts.like_query({neighbors, features}), nullptr, cuts.like_query({neighbors})};
  plan.outputs = {query, cuts.sum_like_points()};
  plan.run = [cuts, batch = points->ndim() - 2, query = query->local_shape(),
              home = cuts.points->local_shape()](const c10::OperatorHandle& op, Stack& stack) {
    const at::Tensor g = one_batch(argument(op, stack, 0).toTensor(), batch),
                     index = one_batch(argument(op, stack, 2).toTensor(), batch);
    const PointRoute route(cuts, index, "neighbor_offsets");
    at::Tensor for_points = route.add(g).view(home);
    finish(op, stack, query_gradient(g, index).view(query), for_points);
  };
  return plan;
}

constexpr const char* kAny = "any cut of batch, queries and points; cut coordinates are gathered";
constexpr const char* kRows = "any cut; only rows that are asked for travel";

const Register rules{
    {.op = "moonhalo::knn", .plan = plan_knn, .source = "at::cdist and topk", .supports = kAny},
    {.op = "moonhalo::radius_search",
     .plan = plan_radius,
     .source = "PyTorch3D ball_query, nearest first",
     .supports = kAny},
    {.op = "moonhalo::neighbor_offsets",
     .plan = plan_offsets,
     .source = "PyTorch index and sub",
     .supports = kRows},
    {.op = "moonhalo::neighbor_offsets_backward",
     .plan = plan_offsets_backward,
     .source = "its adjoint",
     .supports = kRows},
};

}  // namespace
}  // namespace moonhalo
