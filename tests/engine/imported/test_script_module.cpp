// SPDX-License-Identifier: Apache-2.0
// TorchScript modules as torch::nn modules (Y01), compiled and saved here. tests/python has those that Python saves.
#include "moonhalo/engine/imported/script_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/custom_class.h>
#include <torch/optim/adamw.h>

#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/fully_shard.h"
#include "tests/support/bytes_read.h"
#include "tests/support/folder.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_script_module {
namespace {

using ::testing::HasSubstr;

// A convolution on a circle of rows, a branch, and a buffer that forward replaces.
void save_net(const std::string& path, const std::string& bad = "") {
  torch::jit::Module layer("Layer");
  layer.register_parameter("weight", make_tensor({2, 2, 3, 3}, 1) * 0.3, false);
  layer.register_parameter("bias", make_tensor({2}, 2), false);
  layer.define(R"(
    def forward(self, x):
      return torch.conv2d(x, self.weight, self.bias, [1, 1], [1, 1])
  )");
  torch::jit::Module net("Net");
  net.register_module("layer", layer);
  net.register_parameter("scale", make_tensor({2, 1, 1}, 3), false);
  net.register_buffer("steps", at::zeros({1}, at::kDouble));
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(R"(
    def forward(self, x):
      if self.training:
        self.steps = self.steps + 1
      y = torch.tanh(self.layer.forward(x)) * self.scale + x
      )" + bad +
             R"(
      return y * self.steps
    def pair(self, x, n: int):
      return x + n, [x]
  )");
  for (const at::Tensor& parameter : net.parameters()) at::Tensor(parameter).requires_grad_();
  net.save(path);
}

at::Tensor whole(const at::Tensor& tensor) { return is_shard_tensor(tensor) ? full_tensor(tensor) : tensor; }

using Place = std::function<void(jit::ScriptModule&, const MeshPtr&)>;

// Five steps of AdamW: everything that is seen on the way.
std::map<std::string, at::Tensor> train(const std::string& path, const at::Tensor& input, const Place& place,
                                        const MeshPtr& mesh) {
  const std::shared_ptr<jit::ScriptModule> net = jit::load(path);
  place(*net, mesh);
  std::map<std::string, at::Tensor> seen;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = input.detach().requires_grad_();
    const at::Tensor y = call(net, x);
    y.square().mean().backward();
    if (step == 0) {
      seen["output"] = whole(y.detach());
      seen["gradient of the input"] = whole(x.grad());
      for (const auto& p : net->named_parameters()) seen["gradient of " + p.key()] = whole(p.value().grad());
    }
    optimizer.step();
  }
  for (const auto& p : net->named_parameters()) seen[p.key()] = whole(p.value().detach());
  for (const auto& b : net->named_buffers()) seen[b.key()] = whole(b.value());
  return seen;
}

TEST(ScriptModule, Y01_TrainsAsOnOneRank) {
  const Folder folder;
  const std::string path = folder / "net.pt";
  save_net(path);
  const at::Tensor x0 = make_tensor({2, 2, 12, 5}, 4);
  const auto expected = train(
      path, x0, [](auto&, auto&) {}, nullptr);
  ASSERT_EQ(expected.at("steps").item<double>(), 5);
  ASSERT_EQ(expected.size(), 9);
  const std::vector<std::pair<const char*, Place>> ways = {
      {"plain", [](jit::ScriptModule&, const MeshPtr&) {}},
      {"plan",
       [](jit::ScriptModule& net, const MeshPtr& mesh) {
         parallelize_module(std::static_pointer_cast<torch::nn::Module>(net.shared_from_this()), mesh, {});
       }},
      {"fully_shard", [](jit::ScriptModule& net, const MeshPtr& mesh) { fully_shard(net, mesh, {.min_numel = 1}); }},
      {"replicate", [](jit::ScriptModule& net, const MeshPtr& mesh) { replicate(net, mesh); }}};
  for (const auto& [name, place] : ways) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5, 1, 6}, std::vector<int64_t>{0, 12, 0}}) {
      on_mesh({3}, [&, name = name, place = place](const MeshPtr& mesh) {
        const at::Tensor x = distribute_tensor(x0, mesh, {shard(2, sizes)});
        const auto actual = train(path, x, place, mesh);
        for (const auto& [what, value] : expected)
          EXPECT_EQ(difference(actual.at(what), value, 1e-10), "") << name << ": " << what;
      });
    }
  }
}

TEST(ScriptModule, Y01_PlansOfChildrenTakeEffectWhereTheProgramCallsThem) {
  const Folder folder;
  const std::string path = folder / "net.pt";
  save_net(path);
  const at::Tensor x0 = make_tensor({2, 2, 12, 5}, 4);
  const at::Tensor expected = jit::load(path)->forward(x0);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const std::shared_ptr<jit::ScriptModule> net = jit::load(path);
    parallelize_module(net, mesh, parse_plan(R"json({"parameter": {"layer.weight": "S(0)", "layer.bias": "S(0)"},
      "forward": {"layer.input": ["R"], "layer.output": ["S(3)"]}})json"));
    EXPECT_TRUE(spec(net->named_parameters()["layer.weight"])->is_cut(0));
    const at::Tensor y = call(net, distribute_tensor(x0, mesh, {shard(3)}));
    EXPECT_EQ(difference(full_tensor(y), expected, 1e-10), "");
  });
}

TEST(ScriptModule, Y01_MethodsModesAndErrors) {
  const Folder folder;
  const std::string path = folder / "net.pt";
  save_net(path);
  const std::shared_ptr<jit::ScriptModule> net = jit::load(path);
  const at::Tensor x = make_tensor({2, 2, 4, 5}, 4);
  const c10::IValue pair = net->run({x, 3}, "pair");
  EXPECT_EQ(difference(pair.toTupleRef().elements()[0].toTensor(), x + 3, 0), "");
  net->forward(x);
  net->eval();
  net->forward(x);
  EXPECT_EQ(net->named_buffers()["steps"].item<double>(), 1);
  EXPECT_EQ(net->children()[0]->name(), "Layer");
  EXPECT_THAT(message_of([&] { net->run({x}, "pairs"); }), HasSubstr("no method 'pairs'; did you mean 'pair'?"));
  EXPECT_THAT(message_of([&] { jit::load(folder / "none.pt"); }), HasSubstr("jit.load: no file"));

  const std::string bad = folder / "bad.pt";
  save_net(bad, "y = y.view(3, 7)");
  on_mesh({2}, [&](const MeshPtr& mesh) {
    try {
      jit::load(bad)->forward(distribute_tensor(x, mesh, {shard(2)}));
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_THAT(message_of(error), HasSubstr("y = y.view(3, 7)"));
      EXPECT_EQ(message_of(error).find("The following operation failed"), std::string::npos) << message_of(error);
    }
  });
}

// Large tensors in all places that a program has: parameters, one of which is not row-major, a buffer, a list; and a
// small one.
void save_wide(const std::string& path, const char* own_loader = nullptr) {
  torch::jit::Module layer("Layer"), net("Net");
  layer.register_parameter("weight", make_tensor({600, 8}, 1), own_loader != nullptr);
  layer.define(R"(
    def forward(self, x):
      return torch.linear(x, self.weight)
  )");
  if (own_loader != nullptr) layer.define(own_loader);
  net.register_module("layer", layer);
  net.register_parameter("turned", make_tensor({8, 600}, 2).t(), false);
  net.register_parameter("small", make_tensor({8}, 3), false);
  net.register_buffer("table", make_tensor({600, 8}, 4));
  net.register_attribute("list", c10::ListType::ofTensors(),
                         c10::List<at::Tensor>({make_tensor({600, 8}, 5), make_tensor({600, 8}, 6)}));
  net.define(R"(
    def forward(self, x):
      y = self.layer.forward(x * self.small) + torch.linear(x, self.turned) + self.layer.forward(x)
      return y + torch.linear(x, self.table) + torch.linear(x, self.list[0] - self.list[1])
  )");
  for (const at::Tensor& parameter : net.parameters()) at::Tensor(parameter).requires_grad_();
  net.save(path);
}

constexpr int64_t kWide = int64_t{600} * 8 * sizeof(double);

TEST(ScriptModule, Y01_DeferredParametersAreReadByTheirOwners) {
  const Folder folder;
  const std::string path = folder / "net.pt";
  save_wide(path);
  const at::Tensor x = make_tensor({5, 8}, 7), expected = jit::load(path)->forward(x).detach();
  const auto load = [&] { return jit::load(path); };
  const auto check = [&](const MeshPtr& mesh, int64_t needed, const std::function<void(jit::ScriptModule&)>& place) {
    const int64_t begin = bytes_read_here();
    const auto net = deferred_init(load);
    EXPECT_TRUE(is_deferred(net->named_parameters()["layer.weight"]) && is_deferred(net->named_buffers()["table"]));
    EXPECT_FALSE(is_deferred(net->named_parameters()["small"]));
    const int64_t loaded = bytes_read_here();
    EXPECT_GE(loaded - begin, 2 * kWide) << "the list";
    EXPECT_LT(loaded - begin, 3 * kWide);
    place(*net);
    materialize_module(*net);  // what is left
    const int64_t read = bytes_read_here() - loaded;
    EXPECT_GE(read, needed);
    EXPECT_LT(read, needed + 1000);
    EXPECT_EQ(difference(whole(call(net, mesh ? distribute_tensor(x, mesh, {shard(0)}) : x).detach()), expected, 1e-10),
              "");
    for (const auto& p : net->named_parameters()) EXPECT_TRUE(p.value().requires_grad()) << p.key();
  };
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const int64_t rows = std::vector<int64_t>{400, 0, 200}[mesh->rank()],
                  columns = std::vector<int64_t>{3, 3, 2}[mesh->rank()];
    check(mesh, kWide * rows / 600 + kWide * columns / 8 + kWide, [&](jit::ScriptModule& net) {
      const char* const plan = R"json({"parameter": {"layer.weight": "S(0, {400, 0, 200})", "turned": "S(1)"}})json";
      parallelize_module(std::static_pointer_cast<torch::nn::Module>(net.shared_from_this()), mesh, parse_plan(plan));
    });
    check(mesh, kWide * 2 / 3 + kWide, [&](jit::ScriptModule& net) { fully_shard(net, mesh, {.min_numel = 1}); });
  });
  check(nullptr, 3 * kWide, [](jit::ScriptModule&) {});
}

// Code of the program that makes objects would compute with what is not read: it never sees a wrong number.
TEST(ScriptModule, Y01_NothingIsDeferredWhereTheProgramHasItsOwnLoader) {
  const Folder folder;
  const std::string path = folder / "net.pt";
  save_wide(path, R"(
    def __getstate__(self) -> Tuple[Tensor, float]:
      return self.weight, float(torch.sum(self.weight))
    def __setstate__(self, state: Tuple[Tensor, float]):
      weight, total = state
      assert float(torch.sum(weight)) == total, "computed with what is not read"
      self.weight = weight * 2
  )");
  const auto net = deferred_init([&] { return jit::load(path); }), plain = jit::load(path);
  const at::Tensor x = make_tensor({5, 8}, 7);
  EXPECT_EQ(difference(net->forward(x).detach(), plain->forward(x).detach(), 0), "");
}

// An object of C++ that is made of a tensor.
struct Table : torch::CustomClassHolder {
  explicit Table(at::Tensor values) : values(std::move(values)) {}
  at::Tensor rows(const at::Tensor& indices) const { return values.index({indices}); }
  at::Tensor values;
};

const auto kTable =
    torch::class_<Table>("moonhalo_test", "Table")
        .def(torch::init<at::Tensor>())
        .def("rows", [](const c10::intrusive_ptr<Table>& self, const at::Tensor& i) { return self->rows(i); })
        .def_pickle(
            [](const c10::intrusive_ptr<Table>& self) {
              return std::make_tuple(self->values, self->values.sum().item<double>());
            },
            [](const std::tuple<at::Tensor, double>& state) {
              TORCH_CHECK(std::get<0>(state).sum().item<double>() == std::get<1>(state), "what is not read");
              return c10::make_intrusive<Table>(std::get<0>(state));
            });

TEST(ScriptModule, Y01_NothingIsDeferredWhereObjectsAreMadeOfTensors) {
  const Folder folder;
  const at::Tensor dense = make_tensor({600, 8}, 1);
  const auto save = [&](const char* name, const std::function<void(torch::jit::Module&)>& add, const char* forward) {
    torch::jit::Module net("Net");
    add(net);
    net.define(forward);
    net.save(folder / name);
  };
  save(
      "table.pt",
      [&](torch::jit::Module& net) {
        net.register_attribute("table", c10::getCustomClassType<c10::intrusive_ptr<Table>>(),
                               c10::IValue(c10::make_intrusive<Table>(dense)));
      },
      "def forward(self, x):\n  return self.table.rows(x)\n");
  save(
      "sparse.pt", [&](torch::jit::Module& net) { net.register_buffer("table", dense.to_sparse()); },
      "def forward(self, x):\n  return self.table.to_dense()[x]\n");
  const at::Tensor x = at::arange(0, 600, 7);
  for (const char* name : {"table.pt", "sparse.pt"}) {
    const auto net = deferred_init([&] { return jit::load(folder / name); });
    EXPECT_EQ(difference(net->forward(x), dense.index({x}), 0), "") << name;
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_script_module
