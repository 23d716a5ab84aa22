// SPDX-License-Identifier: Apache-2.0
// Steps in which what users gave to a pipeline fails.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "moonhalo/engine/pipeline/pipeline.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_pipeline_failures {
namespace {

using ::testing::HasSubstr;
using Tensors = Pipeline::Tensors;

// An error in what one stage alone calls is that error on all ranks, which go on together.
TEST(Pipeline, N17_AFailingStageIsOneErrorOnAllRanks) {
  struct Failure {
    const char* name;
    const char* said;
    Pipeline::Stage stage;  // the third of four, in micro-batch 2
    Pipeline::Loss loss;
    Pipeline::TrainOptions options = {};
  };
  const at::Tensor w = make_tensor({200, 200}, 1);
  const Pipeline::Stage good = [&](const Tensors& in) { return Tensors{at::matmul(in[0], w)}; };
  const Pipeline::Loss sum = [](const Tensors& out, int64_t) { return out[0].sum(); };
  const Failure failures[] = {
      {"throws", "the valve is stuck",
       [](const Tensors&) -> Tensors { throw std::runtime_error("the valve is stuck"); }, sum},
      {"gives_nothing", "stage 2, micro-batch 2: the stage gave no tensor", [](const Tensors&) { return Tensors{}; },
       sum},
      {"sparse", "tensor between stages", [](const Tensors& in) { return Tensors{in[0].to_sparse()}; }, sum},
      {"loss_of_many", "micro-batch 2: the loss is not a single number\n  have  Double [200, 200]", good,
       [](const Tensors& out, int64_t micro) { return micro == 2 ? out[0] : out[0].sum(); }},
      {"nothing_to_train", "micro-batch 2: nothing to train", good,
       [](const Tensors& out, int64_t micro) { return micro == 2 ? out[0].detach().sum() : out[0].sum(); }},
      {"scale_of_nothing",
       "train_step: micro-batch 0: scale_fn gives no single number\n  have  no tensor",
       good,
       sum,
       {.scale_fn = [](const at::Tensor&) { return at::Tensor(); }}},
      {"backward", "the valve is stuck backwards",
       [&](const Tensors& in) {
         const at::Tensor out = at::matmul(in[0], w);
         out.register_hook([](const at::Tensor&) { throw std::runtime_error("the valve is stuck backwards"); });
         return Tensors{out};
       },
       sum},
  };
  for (const auto schedule : {Schedule::k1F1B, Schedule::kGPipe, Schedule::kInterleaved1F1B}) {
    for (const Failure& failure : failures) {
      SCOPED_TRACE(failure.name);
      on_ranks(schedule == Schedule::kInterleaved1F1B ? 2 : 4, [&](Communicator& world) {
        const MeshPtr mesh = init_device_mesh(world, "cpu", {world.size()}, {"pp"});
        int64_t runs = 0;
        const Pipeline::Stage third = [&](const Tensors& in) { return ++runs == 3 ? failure.stage(in) : good(in); };
        const at::Tensor v = make_tensor({200, 200}, 2).requires_grad_();
        const Pipeline::Stage first = [&](const Tensors& in) { return Tensors{at::matmul(in[0], v)}; };
        Pipeline pipeline(mesh, "pp", {first, good, third, good}, {.schedule = schedule, .micros = 8});
        const std::vector<Tensors> samples(8, {make_tensor({200, 200}, 3)});

        const std::string said = message_of([&] { pipeline.train_step(samples, failure.loss, failure.options); });

        EXPECT_THAT(said, HasSubstr(failure.said)) << world.rank();
        // The pipeline has nothing under way.
        EXPECT_EQ(pipeline.infer_step(samples, sum).size(), 8u);
      });
    }
  }
}

// Two slices of two ranks.
TEST(Pipeline, N17_AFailingSliceIsOneErrorOnAllRanks) {
  on_ranks(4, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {2, 2}, {"pp", "x"});
    Pipeline* made = nullptr;
    const Pipeline::Stage sums = [&](const Tensors& in) {
      at::Tensor all = in[0].detach().clone();
      made->mesh()->group().all_reduce(all);
      return Tensors{in[0] * all};
    };
    Pipeline pipeline(mesh, "pp", {sums, sums}, {.micros = 4});
    made = &pipeline;
    const at::Tensor x = make_tensor({3}, 1).requires_grad_();
    const Pipeline::Loss loss = [](const Tensors& out, int64_t micro) {
      TORCH_CHECK_VALUE(micro != 1, "the loss is stuck");
      return out[0].sum();
    };

    const std::string said = message_of([&] { pipeline.train_step(std::vector<Tensors>(4, {x}), loss); });

    EXPECT_THAT(said, HasSubstr("the loss is stuck"));
    if (mesh->coordinate("pp") == 0)
      EXPECT_THAT(said, HasSubstr("\n  rank  " + std::to_string(2 + mesh->coordinate("x")) + " of 4"));
    world.barrier();
  });
}

// The other rank of its slice waits for it, so that it ends the run.
TEST(Pipeline, N17_ARankThatFailsAloneInItsSliceEndsAllRanks) {
  const std::string said = message_of([&] {
    on_ranks(4, [](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "cpu", {2, 2}, {"pp", "x"});
      Pipeline* made = nullptr;
      const Pipeline::Stage sums = [&](const Tensors& in) {
        TORCH_CHECK_VALUE(made->has_stage(0) || made->mesh()->rank() == 0, "the valve is stuck");
        at::Tensor all = in[0].detach().clone();
        made->mesh()->group().all_reduce(all);
        return Tensors{in[0] * all};
      };
      Pipeline pipeline(mesh, "pp", {sums, sums}, {.micros = 4});
      made = &pipeline;
      pipeline.infer_step(std::vector<Tensors>(4, {make_tensor({3}, 1)}));
    });
  });
  // The failing rank's own error, or that of its neighbour, whose sum finds no other beside it.
  EXPECT_THAT(said, HasSubstr("the valve is stuck"));
}

// Stages share a parameter: the gradient that it had before a step is its gradient after one that has failed.
TEST(Pipeline, N17_AFailedStepLeavesEarlierGradientsOfSharedParameters) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {2}, {"pp"});
    const at::Tensor w = make_tensor({3}, 1).requires_grad_(), before = make_tensor({3}, 2);
    const Pipeline::Stage stage = [w](const Tensors& in) { return Tensors{in[0] * w}; };
    Pipeline pipeline(mesh, "pp", {stage, stage}, {.micros = 2});
    pipeline.tie({0, 1}, w);
    w.mutable_grad() = before.clone();
    const std::vector<Tensors> samples(2, {make_tensor({3}, 3)});
    const auto step = [&](bool fails) {
      pipeline.train_step(samples, [fails](const Tensors& out, int64_t micro) {
        TORCH_CHECK_VALUE(!fails || micro == 0, "the loss is stuck");
        return out[0].sum();
      });
    };

    EXPECT_THAT(message_of([&] { step(true); }), HasSubstr("the loss is stuck"));

    EXPECT_TRUE(w.grad().defined() && at::equal(w.grad(), before));
    step(false);
    EXPECT_EQ(difference(w.grad(), before + 2 * 2 * samples[0][0] * w.detach(), 1e-12), "");
  });
}

// Messages of the step that broke off may still be under way: no other step may take them for its own.
TEST(Pipeline, N17_AStepWhoseRanksWereLostIsTheLast) {
  on_ranks(1, [](Communicator& world) {
    const Pipeline::Stage lost = [](const Tensors&) -> Tensors { throw CommError("rank 7 was lost"); };
    Pipeline pipeline(init_device_mesh(world, "cpu", {1}, {"pp"}), "pp", {lost}, {.micros = 1});
    const std::vector<Tensors> samples(1, {make_tensor({3}, 1)});
    EXPECT_THAT(message_of([&] { pipeline.infer_step(samples); }), HasSubstr("rank 7 was lost"));
    EXPECT_THAT(message_of([&] { pipeline.infer_step(samples); }),
                HasSubstr("infer_step: a step of this pipeline has failed before"));
  });
}

TEST(Pipeline, N17_ARankThatCannotBeginAStepSaysSoOnAllRanks) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {2}, {"pp"});
    const Pipeline::Stage stage = [](const Tensors& in) { return in; };
    Pipeline pipeline(mesh, "pp", {stage, stage}, {.micros = 4});
    const Tensors sample{make_tensor({3}, 1)};
    const std::string said =
        message_of([&] { pipeline.infer_step(std::vector<Tensors>(world.rank() == 0 ? 3 : 4, sample)); });
    EXPECT_THAT(said, HasSubstr("infer_step: 3 samples for 4 micro-batches"));
    EXPECT_EQ(pipeline.infer_step(std::vector<Tensors>(4, sample)).size(), 4u);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_pipeline_failures
