// SPDX-License-Identifier: Apache-2.0
// S10, N37, X12: checkpoints of C++ programs, with other cuts and numbers of ranks, and exchanged with scripts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <limits>

#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/gradient_sync.h"
#include "moonhalo/io/checkpoint/checkpoint.h"
#include "tests/io/support/raw_file.h"
#include "tests/scripting/run_program.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_checkpoint_programs {
namespace {

namespace nn = torch::nn;
using Cut = std::map<std::string, std::vector<Placement>>;

/// Makes a net of the same values on every number of ranks; an odd number of features makes its blocks uneven.
nn::Sequential make_net(const MeshPtr& mesh, const Cut& cuts, double phase = 0) {
  nn::Sequential net(nn::Linear(nn::LinearOptions(6, 7)), nn::Tanh(), nn::Linear(nn::LinearOptions(7, 3)));
  net->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_((at::arange(parameter.numel(), at::kDouble) * 0.37 + phase).sin().reshape(parameter.sizes()));
  }
  ParallelPlan plan;
  plan.parameters = {cuts.begin(), cuts.end()};
  parallelize_module(net.ptr(), mesh, plan);
  return net;
}

double train(nn::Sequential& net, torch::optim::Optimizer& optimizer, const MeshPtr& mesh, int steps) {
  const at::Tensor x =
      distribute_tensor((at::arange(30, at::kDouble) * 0.1).cos().reshape({5, 6}), mesh, {replicate()});
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor value = net->forward(x).square().mean();
    value.backward();
    optimizer.step();
    loss = full_tensor(value.detach()).item<double>();
  }
  return loss;
}

const Cut kCuts = {{"0.weight", {shard(0)}}, {"2.weight", {shard(1)}}, {"2.bias", {shard(0)}}};
const Cut kOthers = {{"0.weight", {shard(1)}}, {"0.bias", {shard(0)}}};

TEST(ProgramCheckpoints, N37_S10_GoOnWithOtherCutsAndNumbersOfRanks) {
  const Folder folder;
  const std::string path = folder / "ck";
  double expected = 0;
  on_mesh({3}, [&](const MeshPtr& mesh) {
    nn::Sequential net = make_net(mesh, kCuts);
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.05));
    train(net, optimizer, mesh, 2);
    int64_t step = 2;
    double best = std::numeric_limits<double>::infinity();
    std::string name = "run";
    for (const bool async : {false, true}) {
      io::CheckpointSaving saving = io::save_checkpoint(
          mesh->group(), path,
          {{"model", net.get()}, {"optimizer", &optimizer}, {"step", &step}, {"best", &best}, {"name", &name}},
          {.async = async});
      EXPECT_EQ(saving.wait(), path);
      EXPECT_TRUE(saving.is_done());
      mesh->group().barrier();
    }
    const double loss = train(net, optimizer, mesh, 2);
    if (mesh->rank() == 0) expected = loss;
  });
  for (const int ranks : {2, 4}) {
    on_mesh({ranks}, [&](const MeshPtr& mesh) {
      nn::Sequential net = make_net(mesh, kOthers, 1);
      torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.5));
      int64_t step = 0;
      double best = 0;
      std::string name;

      io::load_checkpoint(
          mesh->group(), path,
          {{"model", net.get()}, {"optimizer", &optimizer}, {"step", &step}, {"best", &best}, {"name", &name}});

      EXPECT_EQ(step, 2);
      EXPECT_EQ(best, std::numeric_limits<double>::infinity());
      EXPECT_EQ(name, "run");
      EXPECT_NEAR(train(net, optimizer, mesh, 2), expected, 1e-12);
    });
  }
}

TEST(ProgramCheckpoints, N40_AnEntryIsDividedIntoFilesOfAtMostASize) {
  const Folder folder;
  const std::string path = folder / "ck";
  on_mesh({2}, [&](const MeshPtr& mesh) {
    nn::Sequential net = make_net(mesh, kCuts), again = make_net(mesh, kOthers, 1);
    const io::SaveOptions options{.max_file_bytes = 400};

    io::save_checkpoint(mesh->group(), path, {{"model", net.get()}}, options);
    io::load_checkpoint(mesh->group(), path, {{"model", again.get()}});

    for (const std::string part : {"1", "2"}) {
      EXPECT_TRUE(std::filesystem::exists(path + "/model-0000" + part + "-of-00002.safetensors"));
    }
    EXPECT_FALSE(std::filesystem::exists(path + "/model.safetensors"));
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(
          at::equal(full_tensor(again->named_parameters()[item.key()].detach()), full_tensor(item.value().detach())))
          << item.key();
    }
    at::Tensor x = at::ones({2});
    const io::CheckpointState same_names{{"model", net.get()}, {"model-00001-of-00002", &x}};
    EXPECT_THAT(message_of([&] { io::save_checkpoint(mesh->group(), path, same_names, options); }),
                ::testing::HasSubstr("'model-00001-of-00002' has the name of a part of another"));
    mesh->group().barrier();
    if (mesh->rank() == 0) std::filesystem::create_directories(folder / "blocks/rank-00000-of-00002");
    EXPECT_THAT(
        message_of([&] {
          io::load_checkpoint(mesh->group(), folder / "blocks", {{"x", &x}});
        }),
        ::testing::HasSubstr("have  blocks of ranks\n  fix   make one of whole tensors first: moonhalo merge "));
  });
}

// Groups are known by their parameters, in whatever order they are.
TEST(ProgramCheckpoints, N41_GroupsOfAnotherOrderKeepTheirOptions) {
  const Folder folder;
  const std::string path = folder / "ck";
  on_mesh({2}, [&](const MeshPtr& mesh) {
    nn::Sequential net = make_net(mesh, kCuts);
    const auto made = [&](bool turned, double lr) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      for (const bool second : {turned, !turned}) {
        const auto all = net->parameters();
        groups.emplace_back(second ? std::vector<at::Tensor>{all[2], all[3]} : std::vector<at::Tensor>{all[0], all[1]},
                            std::make_unique<torch::optim::SGDOptions>(second ? 3 * lr : lr));
      }
      return torch::optim::SGD(groups, torch::optim::SGDOptions(1));
    };
    torch::optim::SGD saved = made(false, 0.25);
    io::save_checkpoint(mesh->group(), path, {{"model", net.get()}, {"optimizer", &saved}});
    for (const bool turned : {false, true}) {
      torch::optim::SGD other = made(turned, 7);
      io::load_checkpoint(mesh->group(), path, {{"model", net.get()}, {"optimizer", &other}});
      EXPECT_EQ(other.param_groups()[turned].options().get_lr(), 0.25) << turned;
      EXPECT_EQ(other.param_groups()[!turned].options().get_lr(), 0.75) << turned;
    }
  });
}

TEST(ProgramCheckpoints, S10_ScriptsAndProgramsLoadEachOthers) {
  const Folder folder;
  const std::string path = folder / "ck", script = folder / "go_on.lua";
  std::ofstream(script) << R"(local mh = require "moonhalo"
    local nn = mh.nn
    local mesh = mh.init_device_mesh("cpu", {mh.world_size()})
    local net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)):double()
    mh.parallelize_module(net, mesh, {parameter = {["0.weight"] = {mh.Shard(1)}}})
    local opt = mh.optim.RMSprop(net:parameters(), {lr = 1, centered = true})
    local saved = mh.checkpoint.load(arg[1], {model = net, optimizer = opt})
    assert(saved.step == 1 and saved.x:sum():item() == 6)
    local x = mh.distribute_tensor((mh.arange(30, {dtype = "float64"}) * 0.1):cos():reshape{5, 6}, mesh, {mh.Replicate()})
    net(x):square():mean():backward()
    opt:step()
    mh.checkpoint.save(arg[1], {model = net, optimizer = opt, step = 2, x = mh.ones{4}}))";
  on_mesh({3}, [&](const MeshPtr& mesh) {
    nn::Sequential net = make_net(mesh, kCuts), whole = make_net(mesh, {});
    const auto options = torch::optim::RMSpropOptions(0.05).centered(true);
    torch::optim::RMSprop optimizer(net->parameters(), options), other(whole->parameters(), options);
    train(net, optimizer, mesh, 1);
    train(whole, other, mesh, 3);
    int64_t step = 1;
    at::Tensor x = at::full({6}, 1.0);
    io::save_checkpoint(mesh->group(), path,
                        {{"model", net.get()}, {"optimizer", &optimizer}, {"step", &step}, {"x", &x}});
    if (mesh->rank() == 0) {
      const scripting::Result result =
          scripting::run({"run", script, "--ranks", "2", "--backend", "threads", "--", path});
      EXPECT_EQ(result.status, 0) << result.err;
    }
    mesh->group().barrier();

    x = at::zeros({4});
    io::load_checkpoint(mesh->group(), path,
                        {{"model", net.get()}, {"optimizer", &optimizer}, {"step", &step}, {"x", &x}});

    EXPECT_EQ(step, 2);
    EXPECT_EQ(x.sum().item<double>(), 4);
    train(net, optimizer, mesh, 1);
    for (const auto& item : whole->named_parameters()) {
      EXPECT_TRUE(
          at::allclose(full_tensor(net->named_parameters()[item.key()].detach()), full_tensor(item.value().detach())))
          << item.key();
    }
  });
}

// As Python saves and loads the states of its optimizers.
TEST(ProgramCheckpoints, Y05_APackedOptimizerIsThatOfLibTorch) {
  const Folder folder;
  const std::string path = folder / "ck";
  on_mesh({2}, [&](const MeshPtr& mesh) {
    Communicator& world = mesh->group();
    nn::Sequential net = make_net(mesh, kCuts), other = make_net(mesh, kOthers, 1);
    torch::optim::AdamW adam(net->parameters()), second(other->parameters());
    train(net, adam, mesh, 1);
    io::save_checkpoint(world, path, {{"model", net.get()}, {"optimizer", &adam}});
    io::PackedOptimizer packed;

    io::load_checkpoint(world, path, {{"optimizer", &packed}});
    EXPECT_THAT(packed.json, ::testing::HasSubstr("\"name\":\"AdamW\""));
    for (auto& [name, tensor] : packed.tensors) {
      EXPECT_TRUE(tensor.is_meta()) << name;
      tensor = at::zeros(tensor.sizes(), tensor.dtype());
    }
    io::load_checkpoint(world, path, {{"optimizer", &packed}});
    io::save_checkpoint(world, path + "2", {{"model", net.get()}, {"optimizer", &packed}});
    io::load_checkpoint(world, path + "2", {{"model", other.get()}, {"optimizer", &second}});

    const auto moments = [](torch::optim::AdamW& optimizer, const at::Tensor& parameter) {
      auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
      return full_tensor(static_cast<torch::optim::AdamWParamState&>(state).exp_avg());
    };
    ASSERT_FALSE(packed.tensors.empty());
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(at::equal(moments(adam, net->parameters()[i]), moments(second, other->parameters()[i]))) << i;
    packed.json.insert(packed.json.find("\"lr\""), "\"maximize\":true,");
    io::save_checkpoint(world, path + "3", {{"model", net.get()}, {"optimizer", &packed}});
    EXPECT_THAT(message_of([&] {
                  io::load_checkpoint(world, path + "3", {{"model", other.get()}, {"optimizer", &second}});
                }),
                ::testing::HasSubstr("the optimizer has no option 'maximize'"));
  });
}

TEST(ProgramCheckpoints, X16_NothingChangesWhenSomethingDoesNotFit) {
  const Folder folder;
  const std::string path = folder / "ck";
  on_mesh({3}, [&](const MeshPtr& mesh) {
    Communicator& world = mesh->group();
    nn::Sequential net = make_net(mesh, kCuts);
    torch::optim::AdamW adam(net->parameters());
    train(net, adam, mesh, 1);
    int64_t step = 1;
    io::save_checkpoint(world, path, {{"model", net.get()}, {"optimizer", &adam}, {"step", &step}});
    nn::Sequential other = make_net(mesh, kOthers, 1);
    torch::optim::SGD sgd(other->parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::AdamW second(other->parameters()), few({other->parameters()[0]});
    const at::Tensor before = full_tensor(other->parameters()[0].detach()).clone();
    nn::Linear linear(2, 3);
    std::string text;
    double number = 0;
    const auto refuses = [&](const io::CheckpointState& state, const char* problem, const std::string& from) {
      try {
        io::load_checkpoint(world, from, state);
        ADD_FAILURE() << "no error about: " << problem;
      } catch (const c10::Error& error) {
        EXPECT_THAT(error.what_without_backtrace(), ::testing::HasSubstr(problem));
      }
      EXPECT_TRUE(at::equal(full_tensor(other->parameters()[0].detach()), before));
    };
    refuses({{"model", other.get()}, {"optimizer", &sgd}},
            "entry 'optimizer': load_state_dict: the state is that of 'AdamW', the optimizer is SGD", path);
    refuses({{"model", other.get()}, {"optimizer", &few}}, "the optimizer has no '0.bias'", path);
    refuses({{"model", other.get()}, {"optimiser", &second}}, "no entry 'optimiser'; did you mean 'optimizer'?", path);
    refuses({{"model", linear.get()}}, "entry 'model': the tensor 'weight' is missing", path);
    refuses({{"model", other.get()}, {"step", &text}}, "entry 'step': it is not a string but 1", path);
    refuses({{"model", other.get()}}, "is not a checkpoint", path + "2");
    int64_t own = world.rank();
    at::Tensor uneven = at::ones({3 + world.rank()});
    EXPECT_THROW(io::save_checkpoint(world, path, {{"x", &uneven}}), c10::ValueError);
    EXPECT_THROW(io::save_checkpoint(world, path, {{"a/b", &own}}), c10::ValueError);
    other->to(at::kFloat);
    EXPECT_THROW(io::load_checkpoint(world, path, {{"model", other.get()}}), c10::ValueError);
    world.barrier();
    if (world.rank() == 0) std::filesystem::resize_file(path + "/optimizer.safetensors", 400);
    world.barrier();
    nn::Sequential again = make_net(mesh, kOthers, 1);
    EXPECT_THROW(io::load_checkpoint(world, path, {{"model", again.get()}, {"step", &number}}), c10::ValueError);
    EXPECT_TRUE(at::equal(full_tensor(again->parameters()[0].detach()), before));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_checkpoint_programs
