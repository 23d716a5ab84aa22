// SPDX-License-Identifier: Apache-2.0
// Pipelines give the losses and gradients of the same stages one after the other on plain tensors.
#include "moonhalo/engine/pipeline/pipeline.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_pipeline {
namespace {

using ::testing::HasSubstr;
using Tensors = Pipeline::Tensors;
using Stages = std::vector<Pipeline::Stage>;

at::Tensor whole(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return is_shard_tensor(tensor) ? full_tensor(tensor.detach()) : tensor.detach();
}

/// A model of four stages: how its parameters and fields are is decided by `place`.
struct Net {
  using Place = std::function<at::Tensor(const at::Tensor&, size_t number)>;

  explicit Net(const Place& place) {
    const std::vector<std::vector<int64_t>> shapes = {{6, 8}, {8, 8}, {16, 4}, {4, 3}};
    for (size_t s = 0; s < shapes.size(); ++s)
      weights.push_back(place(make_tensor(shapes[s], static_cast<int64_t>(s) + 1), s).detach().requires_grad_());
  }

  /// Lists of several tensors: one handed on untouched, one of integers, one without a gradient, one that is not used.
  Stages stages() const {
    const auto w = weights;
    return {[w](const Tensors& in) {
              const at::Tensor h = at::matmul(in[0], w[0]).tanh();
              return Tensors{h, in[0], at::arange(3)};
            },
            [w](const Tensors& in) {
              EXPECT_FALSE(in[1].requires_grad());
              EXPECT_EQ(in[2].scalar_type(), at::kLong);
              return Tensors{at::matmul(in[0], w[1]).tanh(), in[0], in[1].sum(), in[0].exp()};
            },
            [w](const Tensors& in) {
              return Tensors{at::matmul(at::cat({in[0], in[1]}, 1), w[2]) + in[2], in[1].square().sum(1), in[0] * 2};
            },
            [w](const Tensors& in) { return Tensors{at::matmul(in[0].tanh(), w[3]) * in[1].unsqueeze(1)}; }};
  }

  std::vector<at::Tensor> weights;
};

// Batches of different sizes, one of them of one row.
std::vector<Tensors> fields(int64_t micros) {
  std::vector<Tensors> samples;
  for (int64_t m = 0; m < micros; ++m) samples.push_back({make_tensor({m == 1 ? 1 : 5 + m, 6}, 20 + m)});
  return samples;
}

at::Tensor loss_of(const Tensors& outputs, int64_t micro) {
  return outputs[0].square().mean() * static_cast<double>(micro + 1);
}

struct Outcome {
  Tensors losses, gradients;
};

Outcome serial(int64_t micros) {
  const Net net([](const at::Tensor& tensor, size_t) { return tensor; });
  Outcome outcome;
  const auto samples = fields(micros);
  for (int64_t m = 0; m < micros; ++m) {
    Tensors tensors = samples[m];
    for (const auto& stage : net.stages()) tensors = stage(tensors);
    const at::Tensor loss = loss_of(tensors, m);
    loss.backward();
    outcome.losses.push_back(loss.detach());
  }
  for (const at::Tensor& weight : net.weights) outcome.gradients.push_back(weight.grad());
  return outcome;
}

void expect_same(const Pipeline& pipeline, const Net& net, const Tensors& losses, const Outcome& expected) {
  ASSERT_EQ(losses.size(), expected.losses.size());
  for (size_t m = 0; m < losses.size(); ++m) EXPECT_EQ(difference(losses[m], expected.losses[m], 1e-10), "") << m;
  for (int64_t s = 0; s < pipeline.stages(); ++s) {
    if (pipeline.has_stage(s))
      EXPECT_EQ(difference(whole(net.weights[s].grad()), expected.gradients[s], 1e-10), "") << "stage " << s;
    else
      EXPECT_FALSE(net.weights[s].grad().defined());
  }
}

struct Way {
  std::vector<int64_t> mesh;
  std::vector<std::string> names;
  Schedule schedule;
  int64_t micros;
};

std::vector<Way> ways_on_lines() {
  std::vector<Way> ways;
  for (const int64_t ranks : {1, 2, 4}) {
    for (const Schedule schedule : {Schedule::kGPipe, Schedule::k1F1B, Schedule::kInterleaved1F1B}) {
      if (schedule == Schedule::k1F1B && ranks == 2) continue;
      for (const int64_t micros : {1, 3, 5}) ways.push_back({{ranks}, {"pp"}, schedule, micros});
    }
  }
  return ways;
}

TEST(Pipeline, GivesTheGradientsOfTheStagesInARow) {
  for (const Way& way : ways_on_lines()) {
    SCOPED_TRACE(std::to_string(way.mesh[0]) + " ranks, " + name(way.schedule) + ", " + std::to_string(way.micros));
    const Outcome expected = serial(way.micros);
    on_ranks(static_cast<int>(way.mesh[0]), [&](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, "cpu", way.mesh, way.names);
      const Net net([](const at::Tensor& tensor, size_t) { return tensor; });
      Pipeline pipeline(mesh, "pp", net.stages(), {.schedule = way.schedule, .micros = way.micros});

      const Tensors losses = pipeline.train_step(fields(way.micros), loss_of);
      expect_same(pipeline, net, losses, expected);
      for (const at::Tensor& weight : net.weights) weight.mutable_grad().reset();
      expect_same(pipeline, net, pipeline.train_step(fields(way.micros), loss_of), expected);
    });
  }
}

// Blocks of a stage go to the ranks of the next with the same place, uneven and empty as they are; sums over ranks are
// made first.
TEST(Pipeline, StagesLiveOnSlicesOfTheMesh) {
  const Outcome expected = serial(3);
  const std::vector<Way> ways = {{{2, 2}, {"pp", "x"}, Schedule::kInterleaved1F1B, 3},
                                 {{2, 2}, {"x", "pp"}, Schedule::kGPipe, 3},
                                 {{4, 2}, {"pp", "x"}, Schedule::k1F1B, 3},
                                 {{2, 2, 2}, {"x", "pp", "y"}, Schedule::kInterleaved1F1B, 3}};
  for (const Way& way : ways) {
    on_mesh({c10::multiply_integers(way.mesh)}, [&](const MeshPtr& line) {
      const MeshPtr mesh = init_device_mesh(line->group(), "cpu", way.mesh, way.names);
      std::vector<std::string> others = way.names;
      std::erase(others, "pp");
      const MeshPtr slice = mesh->slice(others);
      const auto on_slice = [&](const at::Tensor& tensor, Placement first, Placement second) {
        std::vector<Placement> placements = {first, second};
        placements.resize(slice->ndim());
        return shard_of(tensor, slice, placements);
      };
      const Net net([&](const at::Tensor& tensor, size_t number) {
        // Rows of the third weight are cut, so that its product is a sum over ranks.
        return on_slice(tensor, number == 2 ? shard(0) : replicate(), number == 1 ? shard(1) : replicate());
      });
      std::vector<Tensors> samples = fields(way.micros);
      for (Tensors& sample : samples) {
        const int64_t rows = sample[0].size(0);
        sample = {on_slice(sample[0], shard(0, {rows - 1, 1}), replicate())};
      }
      Pipeline pipeline(mesh, "pp", net.stages(), {.schedule = way.schedule, .micros = way.micros});
      EXPECT_EQ(pipeline.mesh(), slice);

      expect_same(pipeline, net, pipeline.train_step(samples, loss_of), expected);
    });
  }
}

// Gradients go back in the cut of what was received: one of a replicated tensor comes as a sum over ranks.
TEST(Pipeline, GradientsAreSummedUpBeforeTheyGoBack) {
  const at::Tensor x = make_tensor({2, 3}, 1), v = make_tensor({2, 3}, 2), w = make_tensor({3, 400}, 3);
  const at::Tensor expected = at::matmul(at::matmul(x * v, w) * 2, w.t()) * x;
  on_mesh({4}, [&](const MeshPtr& line) {
    const MeshPtr mesh = init_device_mesh(line->group(), "cpu", {2, 2}, {"pp", "x"}), slice = mesh->slice({"x"});
    const at::Tensor first = shard_of(v, slice, {replicate()}).requires_grad_(),
                     second = shard_of(w, slice, {shard(1, {301, 99})});
    bool partial = false;
    const Stages stages = {[&](const Tensors& in) { return Tensors{in[0] * first}; },
                           [&](const Tensors& in) {
                             in[0].register_hook([&](const at::Tensor& grad) { partial = spec(grad)->has_partial(); });
                             return Tensors{at::matmul(in[0], second)};
                           }};
    Pipeline pipeline(mesh, "pp", stages, {});

    pipeline.train_step({{shard_of(x, slice, {replicate()})}},
                        [](const Tensors& out, int64_t) { return out[0].square().sum(); });

    EXPECT_EQ(partial, pipeline.has_stage(1));
    if (pipeline.has_stage(0)) EXPECT_EQ(difference(whole(first.grad()), expected, 1e-10), "");
  });
}

// Lists whose description fills more than one message, with blocks too large to be copied by the sender, and empty
// ones.
TEST(Pipeline, LongListsAndLargeTensors) {
  const auto run = [](Communicator& world, bool alone) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {world.size()}, {"pp"});
    const at::Tensor w = make_tensor({60, 200}, 1).requires_grad_(), v = make_tensor({200}, 2).requires_grad_();
    const Stages stages = {[&](const Tensors& in) {
                             Tensors out(40, w * in[0]);
                             out.push_back(at::empty({0, 3}));
                             out.push_back(w.to(at::kFloat));
                             return out;
                           },
                           [&](const Tensors& in) {
                             at::Tensor sum = at::zeros({200}, at::kDouble);
                             for (size_t i = 0; i < 40; ++i) sum = sum + in[i].sum(0) * v * static_cast<double>(i);
                             return Tensors{sum + in[41].sum()};
                           }};
    Pipeline pipeline(mesh, "pp", stages, {.micros = 4});
    std::vector<Tensors> samples;
    for (int64_t m = 0; m < 4; ++m) samples.push_back({make_tensor({200}, 3 + m)});
    const Tensors losses = pipeline.train_step(samples, [](const Tensors& out, int64_t) { return out[0].mean(); });
    EXPECT_EQ(w.grad().defined(), alone || world.rank() == 0);
    return Tensors{at::stack(losses), w.grad(), v.grad()};
  };
  Tensors expected;
  on_ranks(1, [&](Communicator& world) { expected = run(world, true); });
  on_ranks(2, [&](Communicator& world) {
    const Tensors actual = run(world, false);
    EXPECT_EQ(difference(actual[0], expected[0], 1e-12), "");
    const int mine = world.rank() == 0 ? 1 : 2;
    EXPECT_EQ(difference(actual[mine], expected[mine], 1e-12), "");
  });
}

// Groups of 3 and 2 micro-batches: with one list under way in each direction the ranks would wait for each other.
TEST(Pipeline, AsManyListsAreUnderWayAsTheScheduleNeeds) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {2}, {"pp"});
    const at::Tensor w = make_tensor({100, 100}, 1).requires_grad_(), x = make_tensor({100, 100}, 2);
    const Pipeline::Stage stage = [&](const Tensors& in) { return Tensors{in[0] * w}; };
    Pipeline pipeline(mesh, "pp", {stage, stage, stage, stage}, {.schedule = Schedule::kInterleaved1F1B, .micros = 5});

    pipeline.train_step(std::vector<Tensors>(5, {x}), [](const Tensors& out, int64_t) { return out[0].sum(); });

    // Two of the four factors are this rank's.
    EXPECT_EQ(difference(w.grad(), x * w.detach().pow(3) * 10, 1e-10), "");
  });
}

// Masks depend on step, micro-batch and stage, not on ranks or schedule; one draw has changed the generator after all.
TEST(Pipeline, DrawsTheSameOnAnyNumberOfRanks) {
  const auto run = [](const MeshPtr& mesh, Schedule schedule) {
    manual_seed(3);
    const at::Tensor w = make_tensor({6, 6}, 1).requires_grad_();
    const Pipeline::Stage drop = [w](const Tensors& in) {
      return Tensors{at::dropout(at::matmul(in[0], w), 0.5, true) + at::randn({6}, at::kDouble)};
    };
    Pipeline pipeline(mesh, "pp", {drop, drop, drop, drop}, {.schedule = schedule, .micros = 3});
    const std::vector<Tensors> samples(3, Tensors{make_tensor({5, 6}, 7)});
    const Pipeline::Loss loss = [](const Tensors& out, int64_t) {
      return (out[0] * at::rand({5, 6}, at::kDouble)).sum();
    };
    const at::Tensor first = at::stack(pipeline.train_step(samples, loss));
    const at::Tensor second = at::stack(pipeline.train_step(samples, loss));
    const ElementwiseRandom random;
    return Tensors{first, second, at::rand({2}, at::kDouble)};
  };
  Tensors expected;
  on_ranks(1,
           [&](Communicator& world) { expected = run(init_device_mesh(world, "cpu", {1}, {"pp"}), Schedule::k1F1B); });
  EXPECT_EQ(std::get<0>(at::unique_dim(at::cat({expected[0], expected[1]}), 0)).size(0), 6) << "all masks differ";
  for (const int ranks : {2, 4}) {
    for (const Schedule schedule : {Schedule::kGPipe, Schedule::kInterleaved1F1B}) {
      on_ranks(ranks, [&](Communicator& world) {
        const Tensors actual = run(init_device_mesh(world, "cpu", {world.size()}, {"pp"}), schedule);
        for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
      });
    }
  }
}

// Stages with the same dropout have masks of their own, as have micro-batches and steps.
TEST(Pipeline, EveryStageOfEveryMicroBatchDrawsItsOwn) {
  on_ranks(1, [](Communicator& world) {
    manual_seed(3);
    std::set<double> drawn;
    const Pipeline::Stage draw = [&](const Tensors& in) {
      drawn.insert(at::rand({1}, at::kDouble).item<double>());
      return in;
    };
    Pipeline pipeline(init_device_mesh(world, "cpu", {1}, {"pp"}), "pp", {draw, draw, draw, draw}, {.micros = 3});
    const at::Tensor x = make_tensor({3}, 1).requires_grad_();
    for (int step = 0; step < 2; ++step)
      pipeline.train_step(std::vector<Tensors>(3, {x}), [](const Tensors& out, int64_t) { return out[0].sum(); });
    EXPECT_EQ(drawn.size(), 4 * 3 * 2U);
  });
}

// The first and the last stage use one weight; what was in its gradient before stays.
TEST(Pipeline, TiedParametersGetTheGradientsOfAllTheirStages) {
  const auto run = [](const MeshPtr& mesh, bool sharded) {
    const at::Tensor plain = make_tensor({6, 6}, 1);
    std::vector<std::string> others = mesh->names();
    std::erase(others, "pp");
    const auto place = [&](const at::Tensor& tensor, Placement placement) {
      return sharded ? shard_of(tensor, mesh->slice(others), {placement}) : tensor;
    };
    const at::Tensor tied = place(plain, shard(0, {5, 1})).detach().requires_grad_(),
                     idle = place(plain, replicate()).detach().requires_grad_();
    const Stages stages = {
        [&](const Tensors& in) { return Tensors{at::matmul(in[0], tied).tanh()}; },
        [&](const Tensors& in) { return Tensors{in[0].sin()}; },
        [&](const Tensors& in) { return Tensors{at::matmul(in[0], tied.t())}; },
        [&](const Tensors& in) { return Tensors{in[0].exp()}; },
    };
    Pipeline pipeline(mesh, "pp", stages, {.schedule = Schedule::kGPipe, .micros = 2});
    const bool has = pipeline.has_stage(0) || pipeline.has_stage(2);
    pipeline.tie({0, 2}, has ? tied : at::Tensor());
    pipeline.tie({0, 1, 3},
                 pipeline.has_stage(0) || pipeline.has_stage(1) || pipeline.has_stage(3) ? idle : at::Tensor());
    const std::vector<Tensors> samples = {{place(make_tensor({4, 6}, 2), shard(0))},
                                          {place(make_tensor({4, 6}, 3), shard(0))}};
    const Pipeline::Loss loss = [](const Tensors& out, int64_t) { return out[0].mean(); };
    pipeline.train_step(samples, loss);
    pipeline.train_step(samples, loss);
    EXPECT_FALSE(idle.grad().defined());
    EXPECT_EQ(tied.grad().defined(), has);
    return has ? whole(tied.grad()) : at::Tensor();
  };
  at::Tensor expected;
  on_ranks(1, [&](Communicator& world) { expected = run(init_device_mesh(world, "cpu", {1}, {"pp"}), false); });
  const auto check = [&](const at::Tensor& actual) {
    if (actual.defined()) EXPECT_EQ(difference(actual, expected, 1e-12), "");
  };
  on_mesh({4}, [&](const MeshPtr& line) { check(run(init_device_mesh(line->group(), "cpu", {4}, {"pp"}), false)); });
  on_mesh({2}, [&](const MeshPtr& line) { check(run(init_device_mesh(line->group(), "cpu", {2}, {"pp"}), false)); });
  on_mesh({8}, [&](const MeshPtr& line) {
    check(run(init_device_mesh(line->group(), "cpu", {4, 2}, {"pp", "x"}), true));
  });
}

TEST(Pipeline, TiedParametersLieAlike) {
  EXPECT_THAT(
      message_of([] {
        on_ranks(2, [](Communicator& world) {
          const MeshPtr mesh = init_device_mesh(world, "cpu", {2}, {"pp"});
          const Pipeline::Stage stage = [](const Tensors& in) { return in; };
          Pipeline pipeline(mesh, "pp", {stage, stage}, {});
          pipeline.tie({0, 1}, at::zeros({2, 3 + world.rank()}));
        });
      }),
      HasSubstr("stages that share a parameter have it in different forms\n  have  Float [2, 3]; Float [2, 4]"));
}

TEST(Pipeline, InferenceGivesTheResultsOnAllRanks) {
  const Net plain([](const at::Tensor& tensor, size_t) { return tensor; });
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1, 1}, {2, 1}, {4, 2}}) {
    on_mesh({c10::multiply_integers(shape)}, [&](const MeshPtr& line) {
      const MeshPtr mesh = init_device_mesh(line->group(), "cpu", shape, {"pp", "x"}), slice = mesh->slice({"x"});
      const Net net([&](const at::Tensor& tensor, size_t) { return shard_of(tensor, slice, {replicate()}); });
      std::vector<Tensors> samples = fields(3);
      for (Tensors& sample : samples) sample = {shard_of(sample[0], slice, {shard(0)})};
      Pipeline pipeline(mesh, "pp", net.stages(), {.schedule = Schedule::kGPipe, .micros = 3});

      const std::vector<Tensors> results = pipeline.infer_step(samples);

      ASSERT_EQ(results.size(), 3U);
      for (int64_t m = 0; m < 3; ++m) {
        Tensors expected = fields(3)[m];
        for (const auto& stage : plain.stages()) expected = stage(expected);
        ASSERT_EQ(results[m].size(), 1U);
        EXPECT_EQ(spec(results[m][0])->mesh(), slice);
        EXPECT_FALSE(results[m][0].requires_grad());
        EXPECT_EQ(difference(whole(results[m][0]), expected[0].detach(), 1e-10), "");
      }
    });
  }
}

TEST(Pipeline, LossesHaveTheirTypeOnAllRanks) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {2}, {"pp"});
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor w = make_tensor({3}, 1, type).requires_grad_();
      const Pipeline::Stage stage = [w](const Tensors& in) { return Tensors{in[0] * w}; };
      Pipeline pipeline(mesh, "pp", {stage, stage}, {.micros = 2});
      const std::vector<Tensors> samples(2, {make_tensor({3}, 2, type)});
      const Pipeline::Loss loss = [](const Tensors& out, int64_t) { return out[0].sum(); };
      for (const at::Tensor& one : pipeline.train_step(samples, loss)) EXPECT_EQ(one.scalar_type(), type);
      for (const at::Tensor& one : pipeline.infer_step(samples, loss)) EXPECT_EQ(one.scalar_type(), type);
    }
  });
}

TEST(Pipeline, DummyBatchesCountNothingAndScalesCount) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {2}, {"pp"});
    const at::Tensor w = make_tensor({3}, 1).requires_grad_();
    const Pipeline::Stage stage = [w](const Tensors& in) { return Tensors{in[0] * w}; };
    Pipeline pipeline(mesh, "pp", {stage, stage}, {.micros = 3});
    const std::vector<Tensors> samples = {{make_tensor({3}, 2)}, {make_tensor({3}, 3)}, {make_tensor({3}, 4)}};
    const Pipeline::Loss loss = [](const Tensors& out, int64_t) { return out[0].sum(); };

    const Tensors losses = pipeline.train_step(
        samples, loss, {.is_dummy_batch = {false, true, false}, .scale_fn = [](const at::Tensor& l) { return l * 4; }});

    const at::Tensor used = samples[0][0] + samples[2][0];
    EXPECT_EQ(difference(w.grad(), used * w.detach() * 4, 1e-12), "");
    for (size_t m = 0; m < 3; ++m)
      EXPECT_EQ(difference(losses[m], (samples[m][0] * w.detach().square()).sum(), 1e-12), "") << m;
  });
}

TEST(Pipeline, RefusesWhatAllRanksSee) {
  on_ranks(2, [](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {2}, {"pp"});
    const Pipeline::Stage stage = [](const Tensors& in) { return in; };
    const Pipeline::Loss loss = [](const Tensors& out, int64_t) { return out[0].sum(); };
    Pipeline pipeline(mesh, "pp", {stage, stage}, {.micros = 4});
    const std::vector<Tensors> three(3, Tensors{at::ones({2})});

    EXPECT_THAT(message_of([&] { pipeline.train_step(three, loss); }),
                HasSubstr("train_step: 3 samples for 4 micro-batches"));
    EXPECT_THAT(message_of([&] { pipeline.infer_step(three); }),
                HasSubstr("infer_step: 3 samples for 4 micro-batches"));
    EXPECT_THAT(message_of([&] { pipeline.train_step(std::vector<Tensors>(4), loss, {.is_dummy_batch = {true}}); }),
                HasSubstr("is_dummy_batch has 1 entries for 4 micro-batches"));
    EXPECT_THAT(message_of([&] {
                  Pipeline(mesh, "pq", {stage, stage}, {});
                }),
                HasSubstr("no mesh dimension named \"pq\"; did you mean 'pp'"));
    EXPECT_THAT(message_of([&] {
                  Pipeline(mesh, "pp", {stage, stage, stage}, {});
                }),
                HasSubstr("3 stages cannot be shared out"));
    EXPECT_THAT(message_of([&] { pipeline.tie({0, 2}, at::ones({2})); }), HasSubstr("tie: no stage 2"));
  });
}

struct Counted {
  std::string text;
  std::vector<bool> has_gradient;
};

/// Counts what this rank sends in a training step and one without gradients.
Counted counted_steps(Communicator& world, const Way& way) {
  const MeshPtr mesh = init_device_mesh(world, "cpu", way.mesh, way.names);
  const Net net([](const at::Tensor& tensor, size_t) { return tensor; });
  Pipeline pipeline(mesh, "pp", net.stages(), {.schedule = way.schedule, .micros = way.micros});
  world.reset_stats();
  EXPECT_EQ(pipeline.train_step(fields(way.micros), loss_of).size(), way.micros);
  const auto results = pipeline.infer_step(fields(way.micros));
  for (int64_t m = 0; m < way.micros; ++m) EXPECT_EQ(results[m][0].sizes(), at::IntArrayRef({m == 1 ? 1 : 5 + m, 3}));
  Counted counted;
  for (const CommStats::Count& count : world.stats().by_kind)
    counted.text +=
        std::to_string(count.calls) + " " + std::to_string(count.messages) + " " + std::to_string(count.bytes) + "; ";
  for (const at::Tensor& weight : net.weights) counted.has_gradient.push_back(weight.grad().defined());
  return counted;
}

TEST(Pipeline, X14_ARankOfADryRunSendsWhatItSends) {
  const std::vector<Way> ways = {{{4}, {"pp"}, Schedule::k1F1B, 3},
                                 {{4}, {"pp"}, Schedule::kGPipe, 2},
                                 {{2}, {"pp"}, Schedule::kInterleaved1F1B, 4},
                                 {{2, 2}, {"pp", "domain"}, Schedule::kInterleaved1F1B, 4}};
  for (const Way& way : ways) {
    const auto ranks = static_cast<int>(c10::multiply_integers(way.mesh));
    on_ranks(ranks, [&](Communicator& comm) {
      const Counted real = counted_steps(comm, way);
      const Counted fake = counted_steps(*make_fake_communicator(comm.rank(), ranks), way);
      EXPECT_EQ(fake.text, real.text) << "rank " << comm.rank() << " of " << ranks;
      EXPECT_EQ(fake.has_gradient, real.has_gradient);
    });
  }
}

TEST(Pipeline, ADryRunNeedsSamples) {
  const CommunicatorPtr world = make_fake_communicator(1, 2);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {2}, {"pp"});
  const Pipeline::Stage stage = [](const Tensors& in) { return in; };
  Pipeline pipeline(mesh, "pp", {stage, stage}, {.micros = 1});
  EXPECT_THAT(message_of([&] { pipeline.infer_step({{}}); }), HasSubstr("give the samples on every rank"));
}

}  // namespace
}  // namespace moonhalo::testing::test_pipeline
