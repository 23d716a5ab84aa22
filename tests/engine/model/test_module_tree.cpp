// SPDX-License-Identifier: Apache-2.0
// Modules of any kind: hooks, patches, styles of users and distribute_module, against the same model whole.
#include "moonhalo/engine/model/module_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>

#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/model/patch.h"
#include "moonhalo/engine/sharding/registered_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/fully_shard.h"
#include "tests/support/modules.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_module_tree {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

nn::Sequential two_layers() { return with_values(nn::Sequential(nn::Linear(6, 7), nn::GELU(), nn::Linear(7, 6))); }

at::Tensor plain(const at::Tensor& tensor) { return is_shard_tensor(tensor) ? full_tensor(tensor) : tensor; }

// A kind of module that does not use torch::nn: y = x w^T, or its children one after the other.
struct Layer {
  at::Tensor weight;
  std::vector<std::shared_ptr<Layer>> inner;
  std::vector<CallHooks> hooks;
  std::shared_ptr<const Parallelized> parallelized;

  at::Tensor operator()(const at::Tensor& x) const {
    CallTensors values{{x}};
    for (const CallHooks& hook : hooks) {
      if (hook.before) hook.before(values);
    }
    at::Tensor y = values.by_position[0];
    if (weight.defined()) y = at::linear(y, weight);
    for (const auto& layer : inner) y = (*layer)(y);
    values.by_position = {y};
    for (const CallHooks& hook : hooks) {
      if (hook.after) hook.after(values);
    }
    return values.by_position[0];
  }
};

class LayerTree : public ModuleTree {
 public:
  explicit LayerTree(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}
  const void* identity() const override { return layer_.get(); }
  std::vector<std::string> kinds() const override { return {"Linear"}; }
  std::vector<Child> children() const override {
    std::vector<Child> all;
    for (const auto& layer : layer_->inner) {
      all.push_back({std::to_string(all.size()), std::make_shared<LayerTree>(layer)});
    }
    return all;
  }
  std::vector<Tensor> tensors() const override {
    if (!layer_->weight.defined()) return {};
    return {{"weight", layer_->weight}};
  }
  void replace_tensor(const std::string&, const at::Tensor& tensor) override { layer_->weight = tensor; }
  void check_signature(const std::string&, const SignaturePlan&, const SignaturePlan&) const override {}
  std::function<void()> add_call_hooks(CallHooks hooks) override {
    layer_->hooks.push_back(std::move(hooks));
    return [] {};
  }
  std::function<void()> wrap_forward(ForwardWrapper) override {
    return [] {};
  }
  std::shared_ptr<const Parallelized> parallelized() const override { return layer_->parallelized; }
  void set_parallelized(std::shared_ptr<const Parallelized> done) override { layer_->parallelized = std::move(done); }

 private:
  std::shared_ptr<Layer> layer_;
};

std::shared_ptr<Layer> layer_of(const at::Tensor& weight, std::vector<std::shared_ptr<Layer>> inner = {}) {
  const at::Tensor leaf = weight.defined() ? weight.clone().requires_grad_() : weight;
  return std::make_shared<Layer>(Layer{leaf, std::move(inner)});
}

TEST(ModuleTree, Y29_ModulesOfAnotherKindAreDividedAsTorchNn) {
  const at::Tensor first = make_tensor({7, 6}, 1), second = make_tensor({5, 7}, 2), x = make_tensor({4, 6}, 3);
  const auto whole = layer_of({}, {layer_of(first), layer_of(second)});
  (*whole)(x).pow(2).sum().backward();
  for (const int ranks : {2, 3}) {
    on_mesh({ranks}, [&](const MeshPtr& mesh) {
      const auto net = layer_of({}, {layer_of(first), layer_of(second)});
      const auto tree = std::make_shared<LayerTree>(net);
      parallelize_module(tree, mesh, parse_plan(R"json({"0": "ColwiseParallel", "1": "RowwiseParallel"})json"));
      EXPECT_EQ(spec(net->inner[0]->weight)->placements()[0].dim, 0);
      EXPECT_EQ(spec(net->inner[1]->weight)->placements()[0].dim, 1);
      (*net)(x).pow(2).sum().backward();
      for (const int i : {0, 1})
        EXPECT_EQ(difference(plain(net->inner[i]->weight.grad()), whole->inner[i]->weight.grad(), 1e-10), "") << i;
      EXPECT_EQ(net->parallelized->plan.parameters.size(), 2);
    });
    on_mesh({ranks}, [&](const MeshPtr& mesh) {
      const auto net = layer_of({}, {layer_of(first), layer_of(second)});
      fully_shard(std::make_shared<LayerTree>(net), mesh, {.min_numel = 1});
      EXPECT_TRUE(spec(net->inner[0]->weight)->is_cut(0));
      EXPECT_EQ(difference(plain((*net)(x)), (*whole)(x), 1e-10), "");
    });
  }
}

TEST(ModuleTree, NamesModulesAndTensorsOnce) {
  nn::Linear layer(3, 3);
  nn::Sequential net(layer, nn::BatchNorm1d(3), layer);
  std::vector<std::string> modules, tensors;
  for (const NamedModule& one : named_modules(module_tree(*net))) modules.push_back(one.name);
  for (const NamedTensor& one : named_tensors(module_tree(*net))) tensors.push_back(one.name);
  EXPECT_THAT(modules, ElementsAre("", "0", "1", "2"));
  EXPECT_THAT(tensors, ElementsAre("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
                                   "1.num_batches_tracked"));
}

TEST(ModuleTree, HooksRunAroundPatchesInOrder) {
  nn::Sequential net = two_layers();
  std::vector<std::string> seen;
  const ModuleTreePtr tree = module_tree(*net);
  const auto note = [&](const char* name) { return [&seen, name](CallTensors&) { seen.emplace_back(name); }; };
  const auto remove_first = tree->add_call_hooks({note("before 1"), note("after 1")});
  tree->add_call_hooks({note("before 2"), nullptr});
  Patches patches = patch(net.ptr(), {{"", [&](nn::Module&, const auto& forward, const at::Tensor& x) {
                                         seen.emplace_back("patch");
                                         return forward(x) + 1;
                                       }}});
  const at::Tensor x = make_tensor({2, 6}, 4), expected = two_layers()->forward(x);
  EXPECT_EQ(difference(call(net, x), expected + 1, 1e-12), "");
  EXPECT_THAT(seen, ElementsAre("before 1", "before 2", "patch", "after 1"));
  remove_first();
  patches.remove();
  patches.remove();
  seen.clear();
  EXPECT_EQ(difference(call(net, x), expected, 1e-12), "");
  EXPECT_THAT(seen, ElementsAre("before 2"));
}

TEST(Patch, V14_AnotherForwardUnderAPlan) {
  const at::Tensor x = make_tensor({5, 6}, 5);
  const auto scaled = [](nn::Module& self, const auto& forward, const at::Tensor& value) {
    return forward(value * 2) + dynamic_cast<nn::LinearImpl&>(self).bias;
  };
  nn::Sequential whole = two_layers();
  patch(whole.ptr(), {{"2", scaled}});
  call(whole, x).pow(2).sum().backward();
  const auto plan = parse_plan(R"json({"0": "ColwiseParallel", "2": "RowwiseParallel"})json");
  for (const bool patched_first : {true, false}) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      nn::Sequential net = two_layers();
      if (patched_first)
        patch(net.ptr(), {{"?", scaled},
                          {"0", [](auto&, const auto& f, const at::Tensor& v) { return f(v); }},
                          {"1", [](auto&, const auto& f, const at::Tensor& v) { return f(v); }}});
      parallelize_module(net.ptr(), mesh, plan);
      if (!patched_first) patch(net.ptr(), {{"2", scaled}});
      call(net, x).pow(2).sum().backward();
      for (const auto& parameter : net->named_parameters()) {
        EXPECT_EQ(difference(plain(parameter.value().grad()), whole->named_parameters()[parameter.key()].grad(), 1e-10),
                  "")
            << parameter.key();
      }
    });
  }
}

TEST(Patch, RefusesNamesOfNoModuleAndTies) {
  nn::Sequential net = two_layers();
  const TorchPatch same = [](auto&, const auto& forward, const at::Tensor& x) { return forward(x); };
  EXPECT_THAT(message_of([&] { patch(net.ptr(), {{"3", same}}); }), HasSubstr("patch: '3' matches no module"));
  EXPECT_THAT(message_of([&] { patch(net.ptr(), {{"?", same}, {"*", same}}); }), HasSubstr("both match '0'"));
  EXPECT_THAT(message_of([&] { patch(net.ptr(), {{"0", nullptr}}); }), HasSubstr("patch: '0' has no function"));
}

TEST(Parallelize, P04_StylesOfUsers) {
  const at::Tensor x = make_tensor({5, 6}, 6);
  const at::Tensor expected = two_layers()->forward(x);
  ParallelPlan plan;
  plan.styles.push_back({"2", {.kind = ParallelStyle::Kind::kCustom, .custom = 0}});
  on_mesh({2}, [&](const MeshPtr& mesh) {
    nn::Sequential net = two_layers();
    EXPECT_THAT(message_of([&] { parallelize_module(net.ptr(), mesh, plan); }), HasSubstr("'2' has custom style 0"));
    ParallelizeOptions options;
    options.custom_styles.emplace_back([](const ModuleTreePtr& module, const MeshPtr& on) {
      const at::Tensor weight = module->tensors()[0].value;
      module->replace_tensor("weight", place_tensor(weight, on, {shard(0)}, 0));
    });
    parallelize_module(net.ptr(), mesh, plan, options);
    EXPECT_TRUE(spec(net->named_parameters()["2.weight"])->is_cut(0));
    EXPECT_TRUE(spec(net->named_parameters()["0.weight"])->is_replicate());
    EXPECT_THAT(module_tree(*net)->parallelized()->custom, ElementsAre("2"));
    EXPECT_EQ(difference(plain(call(net, x)), expected, 1e-10), "");
  });
}

TEST(Parallelize, OneModuleInTwoPlacesMovesItsArgumentsOneWay) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    nn::Linear layer(4, 4);
    nn::Sequential net(layer, layer);
    const auto plan = [](const char* second) {
      return parse_plan(R"json({"forward": {"0.input": ["R"], "1.input": [")json" + std::string(second) +
                        R"json("]}})json");
    };
    EXPECT_THAT(message_of([&] { parallelize_module(net.ptr(), mesh, plan("S(0)")); }),
                HasSubstr("'0' and '1' are one module"));
    EXPECT_FALSE(is_shard_tensor(layer->weight));
    parallelize_module(net.ptr(), mesh, plan("R"));
    EXPECT_TRUE(is_shard_tensor(layer->weight));
  });
}

TEST(DistributeModule, D07_PlacesAsTheFunctionSaysAndReplicatesTheRest) {
  const at::Tensor x = make_tensor({5, 6}, 7);
  nn::Sequential whole = two_layers();
  whole->forward(x).pow(2).sum().backward();
  for (const int ranks : {2, 3}) {
    on_mesh({ranks}, [&](const MeshPtr& mesh) {
      nn::Sequential net = two_layers();
      std::vector<std::string> names;
      DistributeFunctions functions;
      functions.partition = [&](const std::string& name, const ModuleTreePtr& module, const MeshPtr& on) {
        names.push_back(name);
        if (name != "0") return;
        for (const ModuleTree::Tensor& tensor : module->tensors()) {
          module->replace_tensor(tensor.name, place_tensor(tensor.value, on, {shard(0)}, 0));
        }
      };
      functions.input = [](CallTensors& arguments, const MeshPtr& on) {
        arguments.by_position[0] = distribute_tensor(arguments.by_position[0], on, {shard(0)});
      };
      functions.output = [](CallTensors& results, const MeshPtr&) {
        results.by_position[0] = redistribute(results.by_position[0], {replicate()});
      };
      EXPECT_EQ(distribute_module(net.ptr(), mesh, functions), std::shared_ptr<nn::Module>(net.ptr()));
      EXPECT_THAT(names, ElementsAre("", "0", "1", "2"));
      const at::Tensor y = call(net, x);
      EXPECT_TRUE(spec(y)->is_replicate());
      y.pow(2).sum().backward();
      for (const auto& parameter : net->named_parameters()) {
        EXPECT_EQ(spec(parameter.value())->is_cut(0), parameter.key()[0] == '0') << parameter.key();
        EXPECT_EQ(difference(plain(parameter.value().grad()), whole->named_parameters()[parameter.key()].grad(), 1e-10),
                  "")
            << parameter.key();
      }
    });
  }
}

struct HolderImpl : nn::Module {
  HolderImpl() : scale(register_parameter("scale", at::ones({4}))) {}
  at::Tensor scale;
};
TORCH_MODULE(Holder);

TEST(DistributeModule, RefusesTensorsOfUndeclaredClassesBeforeAnythingChanges) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    nn::Linear layer(3, 3);
    nn::ModuleList net(layer, Holder());
    EXPECT_THAT(message_of([&] { distribute_module(net.ptr(), mesh); }),
                HasSubstr("distribute_module: '1.scale' cannot be replaced, it is not known where Holder keeps it"));
    EXPECT_FALSE(is_shard_tensor(layer->weight));
  });
}

TEST(RegisteredMesh, Y29_ModulesFindTheMeshOfTheirRank) {
  for (int run = 0; run < 2; ++run) {  // the end of a rank removes its mesh
    on_mesh({2, 2}, [](const MeshPtr& mesh) {
      EXPECT_FALSE(has_mesh());
      EXPECT_THAT(message_of([] { get_mesh(); }), HasSubstr("get_mesh: no mesh is registered"));
      set_mesh(mesh);
      set_mesh(mesh);
      EXPECT_TRUE(has_mesh());
      EXPECT_EQ(get_mesh(), mesh);
      EXPECT_EQ(get_mesh({mesh->names()[1]}), mesh->slice({mesh->names()[1]}));
      EXPECT_THAT(message_of([&] { set_mesh(mesh->slice({mesh->names()[0]})); }),
                  HasSubstr("another mesh is registered"));
      set_mesh(nullptr);
      EXPECT_FALSE(has_mesh());
      set_mesh(mesh);
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_module_tree
