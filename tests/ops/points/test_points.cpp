// SPDX-License-Identifier: Apache-2.0
// Neighbours in point clouds: the search on one device against all distances, and cut clouds against one device.
#include "moonhalo/ops/points/knn.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_points {
namespace {

using Placements = std::vector<Placement>;

// All squared distances, summed feature by feature, [.., M, N].
at::Tensor all_squared(const at::Tensor& query, const at::Tensor& points) {
  at::Tensor sum = at::zeros({}, query.options());
  for (int64_t f = 0; f < query.size(-1); ++f)
    sum = sum + (points.select(-1, f).unsqueeze(-2) - query.select(-1, f).unsqueeze(-1)).square();
  return sum;
}

// By definition: a stable sort keeps equal distances in the order of their indices.
Tensors reference(const at::Tensor& query, const at::Tensor& points, int64_t most, double radius) {
  const at::Tensor squared = all_squared(query, points);
  const at::Tensor far = squared.sqrt().gt(radius);
  auto [sorted, index] = at::sort(squared.masked_fill(far, INFINITY), /*stable=*/true, -1, false);
  const at::Tensor none = far.gather(-1, index).narrow(-1, 0, most);
  return {sorted.narrow(-1, 0, most).sqrt().masked_fill(none, 0), index.narrow(-1, 0, most).masked_fill(none, -1),
          far.logical_not().sum(-1)};
}

// Points on a coarse lattice, so that many distances are equal.
at::Tensor lattice(at::IntArrayRef shape, int64_t seed, at::ScalarType dtype = at::kDouble) {
  return (make_tensor(shape, seed) * 3).round().to(dtype) / 3;
}

TEST(Points, SearchEqualsAllDistancesSorted) {
  const struct {
    const char* name;
    std::vector<int64_t> batch;
    int64_t queries, points, features, most;
    double radius;
    at::ScalarType dtype;
  } cases[] = {
      {"plane", {}, 100, 333, 2, 7, 0.2, at::kDouble},
      {"line_in_float", {}, 40, 1000, 1, 33, 0.05, at::kFloat},
      {"space_of_batches", {2, 3}, 30, 65, 3, 65, 0.6, at::kFloat},
      {"few_queries_in_tiles", {2}, 3, 5000, 2, 5, 0.1, at::kDouble},
      {"many_features", {}, 50, 90, 20, 4, 2.5, at::kDouble},
      {"one_point", {}, 17, 1, 3, 1, 1.0, at::kDouble},
      {"no_query", {}, 0, 5, 3, 2, 1.0, at::kFloat},
  };
  for (const auto& c : cases) {
    for (const bool ties : {false, true}) {
      SCOPED_TRACE(std::string(c.name) + (ties ? " with ties" : ""));
      std::vector<int64_t> q = c.batch, p = c.batch;
      q.insert(q.end(), {c.queries, c.features});
      p.insert(p.end(), {c.points, c.features});
      const at::Tensor query = ties ? lattice(q, 1, c.dtype) : make_tensor(q, 1, c.dtype),
                       points = ties ? lattice(p, 2, c.dtype) : make_tensor(p, 2, c.dtype);

      const auto [distances, indices] = knn(query, points, c.most);
      const auto [near, which, counts] = radius_search(query, points, c.radius, c.most);

      const Tensors all = reference(query, points, c.most, INFINITY),
                    within = reference(query, points, c.most, c.radius);
      // LibTorch's roots of whole tensors may be off by one bit.
      const double bit = c.dtype == at::kFloat ? 2e-7 : 4e-16;
      EXPECT_EQ(difference(distances, all[0], bit), "");
      EXPECT_TRUE(at::equal(indices, all[1]));
      EXPECT_EQ(difference(near, within[0], bit), "");
      EXPECT_TRUE(at::equal(which, within[1]));
      EXPECT_TRUE(at::equal(counts, within[2]));
    }
  }
}

TEST(Points, WhatIsNoNumberIsFarthestAndTheRadiusBelongsToTheBall) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = INFINITY;
  const at::Tensor points = at::tensor({0.3, nan, 0.1, infinity, 0.7, nan, 0.1}, at::kDouble).unsqueeze(1);
  const at::Tensor query = at::zeros({20, 1}, at::kDouble);

  const auto [distances, indices] = knn(query, points, 7);
  const auto [near, which, counts] = radius_search(query, points, 0.3, 2);
  const auto [nowhere, first] = knn(query + nan, points, 3);

  EXPECT_TRUE(at::equal(indices[19], at::tensor({2, 6, 0, 4, 3, 1, 5}, at::kLong)));
  EXPECT_TRUE(distances[19].slice(0, 5).isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(which[3], at::tensor({2, 6}, at::kLong)));
  EXPECT_EQ(counts[3].item<int64_t>(), 3);
  EXPECT_TRUE(at::equal(first[0], at::tensor({0, 1, 2}, at::kLong)));
}

// Points at the radius itself belong to the ball, also in a leaf that begins there; none that is farther does, by
// however little: float(0.1) is above 0.1, float(0.7) below 0.7.
TEST(Points, TheBallEndsAtTheRadius) {
  const at::Tensor line = at::arange(64, at::kDouble).unsqueeze(1);
  const auto [distances, indices, counts] = radius_search(line, line, 3.0, 8);
  const at::Tensor expected = (line - line.t()).abs().le(3).sum(1);
  EXPECT_TRUE(at::equal(counts, expected));
  EXPECT_TRUE(at::equal(indices.ge(0).sum(1), expected));

  for (const double radius : {0.1, 0.2, 0.3, 0.6, 0.7}) {
    const at::Tensor point = at::full({1, 1}, radius, at::kFloat);
    for (const int64_t queries : {1, 20}) {
      const auto [near, which, count] = radius_search(at::zeros({queries, 1}), point, radius, 1);
      EXPECT_EQ(count[0].item<int64_t>(), point.item<double>() <= radius ? 1 : 0) << radius;
      EXPECT_LE(near[0].item<double>(), radius);
    }
  }
}

// The distances again, from the points that were found, by operators of LibTorch.
at::Tensor distances_of(const at::Tensor& query, const at::Tensor& points, const at::Tensor& indices) {
  const at::Tensor found =
      points.index_select(0, indices.clamp_min(0).flatten()).view({indices.size(0), indices.size(1), -1});
  const at::Tensor squared = (found - query.unsqueeze(1)).square().sum(-1).masked_fill(indices.lt(0), 0);
  return at::where(squared.gt(0), squared, 1).sqrt() * squared.gt(0);
}

TEST(Points, GradientsAreThoseOfTheDistances) {
  const at::Tensor query = at::cat({make_tensor({6, 3}, 1), make_tensor({9, 3}, 2).slice(0, 2, 4)}).requires_grad_(),
                   points = make_tensor({9, 3}, 2).requires_grad_(), weight = make_tensor({8, 4}, 3);
  const auto derivatives = [&](const at::Tensor& distances) {
    const Tensors first = torch::autograd::grad({distances}, {query, points}, {weight}, {}, true);
    const Tensors second = torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, {query, points});
    return Tensors{first[0], first[1], second[0], second[1]};
  };
  for (const bool ball : {false, true}) {
    const auto [distances, indices] =
        ball ? [&] { auto [d, i, n] = radius_search(query, points, 1.0, 4); return std::make_tuple(d, i); }() : knn(query, points, 4);
    EXPECT_FALSE(indices.requires_grad());
    EXPECT_EQ(ball, indices.lt(0).any().item<bool>());

    const Tensors actual = derivatives(distances), expected = derivatives(distances_of(query, points, indices));
    for (size_t i = 0; i < actual.size(); ++i)
      EXPECT_EQ(difference(actual[i], expected[i], 1e-10), "") << ball << " " << i;
  }
}

struct Cloud {
  const char* name;
  std::vector<int64_t> mesh;
  Placements query, points;
};

TEST(Points, AnyCutEqualsTheWholeTensor) {
  const Cloud cases[] = {
      {"both", {2}, {shard(1, {5, 2})}, {shard(1, {4, 7})}},
      {"both_over_3_with_empty_blocks", {3}, {shard(1, {0, 6, 1})}, {shard(1, {8, 0, 3})}},
      {"both_over_4", {4}, {shard(1)}, {shard(1, {1, 1, 8, 1})}},
      {"queries", {2}, {shard(1, {6, 1})}, {replicate()}},
      {"points", {3}, {replicate()}, {shard(1, {2, 9, 0})}},
      {"batch", {2}, {shard(0, {1, 2})}, {replicate()}},
      {"batch_of_the_points", {2}, {shard(1)}, {shard(0, {2, 1})}},
      {"grid", {2, 2}, {shard(1), replicate()}, {replicate(), shard(1, {7, 4})}},
      {"batch_and_rows", {2, 2}, {shard(0), shard(1)}, {shard(0), shard(1, {1, 10})}},
      {"rows_cut_twice", {2, 2}, {shard(1), shard(1)}, {shard(1, {4, 7}), shard(1)}},
      {"crossed", {2, 2}, {shard(0), shard(1)}, {shard(1), shard(0, {1, 2})}},
      {"queries_twice_points_once", {2, 2}, {shard(1), shard(1)}, {replicate(), shard(1)}},
      {"coordinates", {2}, {shard(2)}, {shard(2)}},
      {"sum", {2}, {partial()}, {shard(1)}},
  };
  const auto program = [](const Tensors& t) {
    const auto [distances, indices] = knn(t[0], t[1], 9);  // more than most blocks hold
    const auto [near, which, counts] = radius_search(t[0], t[1], 0.8, 3);
    const at::Tensor offsets = neighbor_offsets(t[0], t[1], which);
    return Tensors{distances, indices, near, which, counts, offsets, offsets.square().sum({-1, -2})};
  };
  for (const Cloud& c : cases) {
    for (const bool ties : {false, true}) {
      // A sum over ranks is rounded, and then nothing ties.
      if (ties && c.query[0].is_partial()) continue;
      SCOPED_TRACE(std::string(c.name) + (ties ? " with ties" : ""));
      const auto make = ties ? [](at::IntArrayRef s, int64_t seed) { return lattice(s, seed); }
                             : [](at::IntArrayRef s, int64_t seed) { return make_tensor(s, seed); };
      expect_same_as_plain(
          c.mesh,
          {{.full = make({3, 7, 2}, 1), .placements = c.query}, {.full = make({3, 11, 2}, 2), .placements = c.points}},
          program, {.double_backward = true, .same_cut_gradients = false});
    }
  }
}

TEST(Points, FewQueriesTravelInsteadOfPoints) {
  const Cloud cases[] = {
      {"both_over_3", {3}, {shard(1, {3, 0, 2})}, {shard(1, {20, 1, 39})}},
      {"queries_replicated", {4}, {replicate()}, {shard(1, {0, 30, 30, 0})}},
      {"grid", {2, 2}, {shard(1, {1, 4}), replicate()}, {replicate(), shard(1, {50, 10})}},
      {"batch_and_rows", {2, 2}, {shard(0), replicate()}, {replicate(), shard(1)}},
  };
  for (const Cloud& c : cases) {
    for (const bool ties : {false, true}) {
      SCOPED_TRACE(std::string(c.name) + (ties ? " with ties" : ""));
      const auto make = ties ? [](at::IntArrayRef s, int64_t seed) { return lattice(s, seed); }
                             : [](at::IntArrayRef s, int64_t seed) { return make_tensor(s, seed); };
      expect_same_as_plain(
          c.mesh,
          {{.full = make({2, 5, 2}, 1), .placements = c.query}, {.full = make({2, 60, 2}, 2), .placements = c.points}},
          [](const Tensors& t) {
            const auto [distances, indices] = knn(t[0], t[1], 4);
            const auto [near, which, counts] = radius_search(t[0], t[1], 0.5, 3);
            return Tensors{distances, indices, near, which, counts};
          },
          {.double_backward = true, .same_cut_gradients = false});
    }
  }
  on_mesh({2}, [](const MeshPtr& mesh) {
    const at::Tensor query = shard_of(make_tensor({6, 3}, 1), mesh, {shard(0, {4, 2})}),
                     points = shard_of(make_tensor({500, 3}, 2), mesh, {shard(0)});
    mesh->group().reset_stats();
    knn(query, points, 2);
    // Own queries out; for the other's two distances, two indices and two counts each back.
    const int64_t own = mesh->rank() == 0 ? 4 : 2;
    EXPECT_EQ(mesh->group().stats().total().bytes, own * 3 * 8 + (6 - own) * (2 * 16 + 16));
  });
}

// Ranks that hold the same points divide the queries: as many as there are points, they would cost more than these.
TEST(Points, AsManyQueriesAsPointsStayWhereTheyAre) {
  on_mesh({2, 2}, [](const MeshPtr& mesh) {
    const at::Tensor query = shard_of(make_tensor({60, 3}, 1), mesh, {replicate(), shard(0)}),
                     points = shard_of(make_tensor({60, 3}, 2), mesh, {shard(0), replicate()});
    mesh->group().reset_stats();
    knn(query, points, 2);
    EXPECT_EQ(mesh->group().stats().total().bytes, 30 * 3 * 8);  // the block of points
  });
}

TEST(Points, OnlyBlocksAndRowsAskedForTravel) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    // Two clusters far from each other, queries near their own; one query of rank 0 has its neighbour at home too.
    const at::Tensor where = at::arange(12, at::kDouble).unsqueeze(1) * at::ones({1, 3}, at::kDouble);
    const Placements rows = {shard(0, {8, 4})};
    const at::Tensor query = shard_of(where + 0.1, mesh, rows).requires_grad_(),
                     points = shard_of(where, mesh, rows).requires_grad_();
    mesh->group().reset_stats();
    const auto [distances, indices] = knn(query, points, 1);
    EXPECT_EQ(spec(distances), make_spec(mesh, {12, 1}, rows));
    const int64_t block = mesh->rank() == 0 ? 8 : 4;
    EXPECT_EQ(mesh->group().stats().total().bytes, block * 3 * 8);

    mesh->group().reset_stats();
    const Tensors gradients = torch::autograd::grad({distances.sum()}, {query, points});
    EXPECT_EQ(spec(gradients[1]), spec(points));
    EXPECT_EQ(mesh->group().stats().by_kind[CommStats::kAllToAll].bytes, 0);
    EXPECT_EQ(mesh->group().stats().by_kind[CommStats::kExchange].bytes, 0);
  });
}

// Neither made nor sent: by the operator that is asked for one, and by autograd for tensors that are not asked about.
TEST(Points, GradientsThatAreNotWantedAreNotMade) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("moonhalo::neighbor_offsets_backward", "");
  on_mesh({2}, [&](const MeshPtr& mesh) {
    for (const bool cut : {false, true}) {
      const auto rows = [&](const at::Tensor& whole, int64_t first) {
        return cut ? shard_of(whole, mesh, {shard(0, {first, whole.size(0) - first})}) : whole;
      };
      const at::Tensor query = rows(make_tensor({9, 3}, 1), 2).requires_grad_(),
                       points = rows(make_tensor({7, 3}, 2), 5).requires_grad_(),
                       distances = std::get<0>(knn(query, points, 3)), indices = std::get<1>(knn(query, points, 3)),
                       grad = rows(make_tensor({9, 3, 3}, 3), 2);
      const auto sent_by = [&](const auto& what) {
        mesh->group().reset_stats();
        what();
        return mesh->group().stats().total().bytes;
      };
      const auto gradients = [&](bool first, bool second) {
        const at::NoGradGuard no_grad;
        torch::jit::Stack stack{grad, points.detach(), indices, c10::List<bool>{first, second}};
        op.callBoxed(stack);
        return std::pair{stack[0].toTensor(), stack[1].toTensor()};
      };
      const auto whole = [](const at::Tensor& t) { return is_shard_tensor(t) ? full_tensor(t) : t; };
      std::pair<at::Tensor, at::Tensor> both, first, second;
      both = gradients(true, true);
      EXPECT_EQ(sent_by([&] { first = gradients(true, false); }), 0);
      second = gradients(false, true);
      EXPECT_FALSE(first.second.defined() || second.first.defined());
      EXPECT_TRUE(at::equal(whole(first.first), whole(both.first)));
      EXPECT_TRUE(at::equal(whole(second.second), whole(both.second)));

      Tensors all, of_query;
      const auto ask = [&](const Tensors& of) {
        return torch::autograd::grad({distances.sum()}, of, {}, /*retain_graph=*/true);
      };
      const int64_t for_all = sent_by([&] {
        all = ask({query, points});
      }),
                    for_query = sent_by([&] { of_query = ask({query}); });
      if (cut) EXPECT_LT(for_query, for_all);
      EXPECT_TRUE(at::equal(whole(of_query[0]), whole(all[0])));
      EXPECT_TRUE(at::equal(whole(ask({points})[0]), whole(all[1])));
      const auto twice = [&](const Tensors& of, const at::Tensor& by) {
        const auto once = torch::autograd::grad({distances.sum()}, of, {}, true, /*create_graph=*/true);
        return whole(torch::autograd::grad({once[0].square().sum()}, {by}, {}, true)[0]);
      };
      for (const at::Tensor& by : {query, points})
        EXPECT_TRUE(at::equal(twice({query}, by), twice({query, points}, by)));
    }
  });
}

TEST(Points, AMissingNeighbourHasNoPartInAnyNumber) {
  const at::Tensor indices = at::tensor({0, -1, -1, -1, 2, 1}, at::kLong).view({3, 2}),
                   missing = indices.lt(0).unsqueeze(-1);
  at::Tensor query = make_tensor({3, 2}, 1), grad = make_tensor({3, 2, 2}, 3);
  query[1].fill_(INFINITY);
  const at::Tensor points = make_tensor({4, 2}, 2),
                   found = points.index_select(0, indices.clamp_min(0).flatten()).view({3, 2, 2}),
                   expected = at::where(missing, 0.0, found - query.unsqueeze(1)),
                   expected_grad = -at::where(missing, 0.0, grad).sum(1);
  grad.masked_fill_(missing, NAN);
  const auto check = [&](at::Tensor q, const at::Tensor& p, const at::Tensor& index, const at::Tensor& cotangent) {
    q.requires_grad_();
    const at::Tensor offsets = neighbor_offsets(q, p, index);
    const Tensors gradients = torch::autograd::grad({offsets}, {q}, {cotangent});
    const auto whole = [](const at::Tensor& t) { return is_shard_tensor(t) ? full_tensor(t) : t; };
    EXPECT_EQ(difference(whole(offsets.detach()), expected, 1e-14), "");
    EXPECT_EQ(difference(whole(gradients[0]), expected_grad, 1e-14), "");
  };
  check(query.clone(), points, indices, grad);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const Placements rows = {shard(0, {2, 1})};
    check(shard_of(query, mesh, rows), shard_of(points, mesh, {shard(0, {1, 3})}), shard_of(indices, mesh, rows),
          shard_of(grad, mesh, rows));
  });
}

TEST(Points, AnIndexOfNoPointIsAnErrorOnEveryRank) {
  const at::Tensor query = make_tensor({5, 2}, 1);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const Placements rows = {shard(0, {2, 2, 1})};
    const at::Tensor points = shard_of(make_tensor({6, 2}, 2), mesh, {shard(0, {4, 0, 2})});
    const auto offsets = [&](std::vector<int64_t> indices) {
      return neighbor_offsets(shard_of(query, mesh, rows), points,
                              shard_of(at::tensor(indices, at::kLong).unsqueeze(1), mesh, rows));
    };
    EXPECT_THAT(message_of([&] {
                  offsets({0, 5, 1, 8, 2});
                }),
                ::testing::StartsWith("neighbor_offsets: index 8 is not one of 6 points\n  have  "
                                      "indices from 0 to 8"));
    EXPECT_THAT(message_of([&] {
                  offsets({0, 5, 1, 100, -3});
                }),
                ::testing::StartsWith("neighbor_offsets: index -3 is not one of 6 points\n  have  "
                                      "indices from -3 to 100"));
    EXPECT_THAT(message_of([&] {
                  offsets({0, 5, 1, -2, 3});
                }),
                ::testing::StartsWith("neighbor_offsets: index -2 is not one of 6 points"));
    EXPECT_EQ(message_of([&] { offsets({0, 5, 1, -1, 3}); }), "");
  });
}

TEST(Points, RefusesWhatCannotBeAnswered) {
  const at::Tensor plane = make_tensor({5, 2}, 1), space = make_tensor({5, 3}, 1);
  const std::pair<std::function<void()>, const char*> wrong[] = {
      {[&] { knn(plane, space, 1); }, "knn: a query of shape [5, 2] for points of shape [5, 3]"},
      {[&] { knn(plane, plane.to(at::kFloat), 1); }, "knn: a query of Double and points of Float"},
      {[&] { knn(plane, plane, 6); }, "knn: k = 6 is not in [1, 5]"},
      {[&] { radius_search(plane, plane, -1, 2); }, "radius_search: the radius is -1"},
      {[&] { radius_search(plane, plane, 1, 0); }, "radius_search: max_neighbors = 0 is not in [1,"},
      {[&] {
         neighbor_offsets(plane, plane, at::zeros({4, 1}, at::kLong));
       },
       "neighbor_offsets: indices of shape [4, 1] for queries [5]"},
      {[&] {
         neighbor_offsets(plane, plane, at::full({5, 1}, 5, at::kLong));
       },
       "neighbor_offsets: index 5 is not one of 5 points"},
  };
  for (const auto& [call, text] : wrong) EXPECT_THAT(message_of(call), ::testing::StartsWith(text));
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor points = shard_of(plane, mesh, {shard(0, {4, 0, 1})});
    EXPECT_THAT(message_of([&] { knn(plane, points, 6); }), ::testing::StartsWith("knn: k = 6 is not in [1, 5]"));
    EXPECT_THAT(message_of([&] { knn(space, points, 1); }), ::testing::StartsWith("knn: a query of shape [5, 3]"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_points
