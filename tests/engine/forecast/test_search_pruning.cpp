// SPDX-License-Identifier: Apache-2.0
// Searches that leave out dry runs find what dry runs of all ranks of all divisions find.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "moonhalo/engine/forecast/search/division_search.h"
#include "tests/support/divided_nets.h"
#include "tests/support/planted_search.h"

namespace moonhalo::testing::test_search_pruning {
namespace {

using ::testing::HasSubstr;
using Fate = DivisionResult::Fate;

/// A layer and an attention over rows that the ranks of the domain share, in a ring.
BuildDivided build_attention(int64_t batch, int64_t rows, int64_t width) {
  return [=](const Division& division, Communicator& world) {
    torch::nn::Sequential net{torch::nn::Linear(width, width)};
    const MeshPtr mesh = init_device_mesh(world, "cpu", division.mesh_shape(), Division::mesh_names());
    parallelize_module(net.ptr(), mesh, {});
    const MeshPtr data = mesh->slice({"data"});
    if (division.is_stored) {
      fully_shard(*net, data, {.min_numel = 1});
    } else {
      replicate(*net, data);
    }
    const SpecPtr spec = make_spec(mesh, {batch, 4, rows, width}, {shard(0), shard(2), shard(2), replicate()});
    const at::Tensor x = from_local(at::ones(spec->local_shape()), spec);
    const auto optimizer = std::make_shared<ParallelOptimizer>(
        build_optimizer<torch::optim::AdamW>(*net, torch::optim::AdamWOptions(1e-3)));
    BuiltStep built;
    built.parameters = optimizer->parameters();
    built.step = [net, x, optimizer]() mutable {
      optimizer->zero_grad();
      const at::Tensor y = call(net, x);
      at::scaled_dot_product_attention(y, y, y).square().mean().backward();
      optimizer->step();
    };
    return built;
  };
}

struct Searched {
  const char* name;
  Machine machine;
  BuildDivided build;
  SearchOptions options;

  Searched(const char* name, const Machine& machine, BuildDivided build, const DivisionSpace& space,
           double jitter = 0.01)
      : name(name), machine(machine), build(std::move(build)) {
    options.space = space;
    options.machine = machine;
    options.machine.device.jitter = jitter;
    options.machine.device.launch = 1e-6;
    options.backend = "nccl";
  }
};

// 18 ranks of which not all are run, and four of which all are.
std::vector<Searched> searches() {
  const DividedNet fields{.batch = 2, .channels = 4, .hidden = 16, .kernel = 5, .height = 72, .width = 72};
  const DivisionSpace space{.ranks = 18, .most_data = 2, .most_rows = 18, .most_columns = 2};
  DivisionSpace of_four = space;
  of_four.ranks = 4;
  return {
      {"rings, slow links", machine_of(1e11, 1e11, 1e8, 1e-5), build_attention(2, 180, 64), space},
      {"rings on four", machine_of(1e11, 1e11, 1e9, 1e-6), build_attention(2, 180, 64), of_four},
      {"fields, fast links", machine_of(1e9, 1e10, 1e11, 1e-7), build_divided(fields), space},
      {"fields on four", machine_of(1e9, 1e10, 1e9, 1e-6), build_divided(fields), of_four, 0},
  };
}

TEST(SearchPruning, X14_TheBestIsThatOfDryRunsOfAll) {
  int by_inner_ranks = 0;
  for (const Searched& one : searches()) {
    const SearchResult found = search_divisions(one.options, one.build);
    SearchOptions options = one.options;
    options.prunes = false;
    const SearchResult all = search_divisions(options, one.build);
    SCOPED_TRACE(one.name + ("\n" + to_text(found)) + to_text(all));

    EXPECT_EQ(found.best(), all.best());
    EXPECT_EQ(found.ranked.front().step, all.ranked.front().step);
    EXPECT_EQ(found.ranked.front().memory, all.ranked.front().memory);
    EXPECT_LT(found.dry_runs, all.dry_runs);
    for (const DivisionResult& result : found.ranked) {
      const double step = of_division(all, result.division).step;
      EXPECT_LE(result.bound.step, step * (1 + 1e-9)) << result.division.text();
      if (result.fate != Fate::kSlowBound) continue;
      EXPECT_GT(result.bound.step, found.ranked.front().step) << result.division.text();
      EXPECT_THAT(result.why, HasSubstr("which rank " + std::to_string(result.bound.rank) + " takes alone"));
      by_inner_ranks += result.bound.rank > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(by_inner_ranks, 0) << "ranks with more neighbours than rank 0 end dry runs";
}

// Rank 0 of a division is run again where its dry run was not kept.
TEST(SearchPruning, X14_DryRunsThatAreNotKeptAreDoneAgain) {
  const Searched one = searches().back();
  std::map<std::string, int> runs;  // of rank 0
  const auto search = [&](int64_t kept_bytes) {
    SearchOptions options = one.options;
    options.kept_bytes = kept_bytes;
    runs.clear();
    return search_divisions(options, [&](const Division& division, Communicator& world) {
      if (world.rank() == 0) ++runs[division.text()];
      return one.build(division, world);
    });
  };
  const SearchResult kept = search(one.options.kept_bytes);
  EXPECT_EQ(runs[kept.best().text()], 1);

  const SearchResult found = search(0);

  EXPECT_EQ(to_json(found), to_json(kept));
  EXPECT_EQ(runs[found.best().text()], 2);
}

}  // namespace
}  // namespace moonhalo::testing::test_search_pruning
