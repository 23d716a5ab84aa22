// SPDX-License-Identifier: Apache-2.0
// Programs of torch.export (Y02): files that are written here, sound and damaged. tests/python has those of Python.
#include "moonhalo/engine/imported/exported_module.h"

#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/imported/exported_program.h"
#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/profile/profiler.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/bytes_read.h"
#include "tests/support/folder.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_exported_module {
namespace {

using ::testing::HasSubstr;

// relu(x @ weight.T + bias) * rows of x, and a buffer that counts the calls.
constexpr const char* kProgram = R"json({
  "schema_version": {"major": 8, "minor": 17}, "range_constraints": {"s0": {"min_val": 2, "max_val": 9}},
  "graph_module": {
    "graph": {
      "inputs": [{"as_tensor": {"name": "w"}}, {"as_tensor": {"name": "b"}}, {"as_tensor": {"name": "n"}}, {"as_tensor": {"name": "x"}}],
      "outputs": [{"as_tensor": {"name": "n1"}}, {"as_tensor": {"name": "y"}}],
      "nodes": [
        {"target": "torch.ops.aten.linear.default", "outputs": [{"as_tensor": {"name": "h"}}],
         "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "x"}}}, {"name": "weight", "arg": {"as_tensor": {"name": "w"}}},
                    {"name": "bias", "arg": {"as_tensor": {"name": "b"}}}],
         "metadata": {"nn_module_stack": "L__self__,,net.Net;L__self__fc,fc,torch.nn.modules.linear.Linear",
                      "stack_trace": "File \"/home/net.py\", line 20, in forward\n    h = self.fc(x)"}},
        {"target": "torch.ops.aten.add.Tensor", "outputs": [{"as_tensor": {"name": "n1"}}],
         "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "n"}}}, {"name": "other", "arg": {"as_int": 1}}], "metadata": {}},
        {"target": "torch.ops.aten.sym_size.int", "outputs": [{"as_sym_int": {"as_name": "rows"}}],
         "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}}, {"name": "dim", "arg": {"as_int": 0}}], "metadata": {}},
        {"target": "_operator.mul", "outputs": [{"as_sym_int": {"as_name": "twice"}}],
         "inputs": [{"name": "", "arg": {"as_sym_int": {"as_name": "rows"}}}, {"name": "", "arg": {"as_int": 2}}], "metadata": {}},
        {"target": "torch.ops.aten.relu.default", "outputs": [{"as_tensor": {"name": "r"}}],
         "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "h"}}}], "metadata": {}},
        {"target": "torch.ops.aten.mul.Tensor", "outputs": [{"as_tensor": {"name": "y"}}],
         "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "r"}}}, {"name": "other", "arg": {"as_sym_int": {"as_name": "twice"}}}],
         "metadata": {}}],
      "tensor_values": {"x": {"sizes": [{"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)"}}, {"as_int": 3}]}}},
    "signature": {
      "input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "fc.weight"}}, {"parameter": {"arg": {"name": "b"}, "parameter_name": "fc.bias"}},
                      {"buffer": {"arg": {"name": "n"}, "buffer_name": "calls", "persistent": true}},
                      {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
      "output_specs": [{"buffer_mutation": {"arg": {"name": "n1"}, "buffer_name": "calls"}}, {"user_output": {"arg": {"as_tensor": {"name": "y"}}}}]},
    "module_call_graph": []}})json";

std::string entry(const std::string& record, const std::string& sizes, const std::string& strides, bool grad) {
  return R"({"path_name": ")" + record + R"(", "use_pickle": false, "tensor_meta": {"dtype": 8, "sizes": [)" + sizes +
         R"(], "strides": [)" + strides + R"(], "storage_offset": {"as_int": 0}, "requires_grad": )" +
         (grad ? "true" : "false") + "}}";
}

at::Tensor weight() { return make_tensor({4, 3}, 1); }
at::Tensor bias() { return make_tensor({4}, 2); }

void save(const std::string& path, const std::string& program, const std::string& rows = "4",
          const at::Tensor& kept_weight = weight(), const at::Tensor& kept_bias = bias()) {
  caffe2::serialize::PyTorchStreamWriter writer(path);
  const auto write_tensor = [&](const std::string& name, const at::Tensor& tensor) {
    const at::Tensor whole = tensor.contiguous();
    writer.writeRecord("data/weights/" + name, whole.const_data_ptr(), whole.nbytes());
  };
  write_tensor("weight_0", kept_weight);
  write_tensor("weight_1", kept_bias);
  write_tensor("weight_2", at::zeros({1}, at::kDouble));
  const std::string weights =
      R"({"config": {"fc.weight": )" +
      entry("weight_0", R"({"as_int": )" + rows + R"(}, {"as_int": 3})", R"({"as_int": 3}, {"as_int": 1})", true) +
      R"(, "fc.bias": )" +
      entry("weight_1", R"({"as_int": )" + std::to_string(kept_bias.numel()) + "}", R"({"as_int": 1})", true) +
      R"(, "calls": )" + entry("weight_2", R"({"as_int": 1})", R"({"as_int": 1})", false) + "}}";
  writer.writeRecord("data/weights/model_weights_config.json", weights.data(), weights.size());
  writer.writeRecord("models/model.json", program.data(), program.size());
  writer.writeEndOfFile();
}

at::Tensor whole(const at::Tensor& tensor) { return is_shard_tensor(tensor) ? full_tensor(tensor) : tensor; }

TEST(ExportedModule, Y02_RunsOnBlocksWithGradients) {
  const Folder folder;
  const std::string path = folder / "net.pt2";
  save(path, kProgram);
  const at::Tensor x0 = make_tensor({7, 3}, 3);
  const at::Tensor w = weight().requires_grad_(), b = bias().requires_grad_(), x_plain = x0.clone().requires_grad_();
  const at::Tensor expected = at::relu(at::linear(x_plain, w, b)) * 14;
  expected.square().sum().backward();
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5, 1, 1}, std::vector<int64_t>{0, 7, 0}}) {
    for (const bool planned : {false, true}) {
      on_mesh({3}, [&](const MeshPtr& mesh) {
        const auto net = exported::load(path);
        if (planned) parallelize_module(net, mesh, parse_plan(R"json({"parameter": {"fc.weight": "S(0)"}})json"));
        const at::Tensor x = distribute_tensor(x0, mesh, {shard(0, sizes)}).detach().requires_grad_();
        const at::Tensor y = call(net, x);
        y.square().sum().backward();
        EXPECT_EQ(difference(whole(y.detach()), expected.detach(), 1e-10), "");
        EXPECT_EQ(difference(whole(x.grad()), x_plain.grad(), 1e-10), "");
        EXPECT_EQ(difference(whole(net->named_parameters()["fc.weight"].grad()), w.grad(), 1e-10), "");
        EXPECT_EQ(difference(whole(net->named_parameters()["fc.bias"].grad()), b.grad(), 1e-10), "");
        EXPECT_EQ(whole(net->named_buffers()["calls"]).item<double>(), 1);
        EXPECT_EQ(net->children()[0]->name(), "Linear");
      });
    }
  }
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// The program with the operators behind fc in other modules: relu in blocks.0, the product in blocks.
std::string with_nested_modules() {
  const std::string blocks = "L__self__,,net.Net;L__self__blocks,blocks,net.Blocks";
  const std::string text = changed(kProgram, R"({"name": "h"}}}], "metadata": {}})",
                                   R"({"name": "h"}}}], "metadata": {"nn_module_stack": ")" + blocks +
                                       R"(;L__self__blocks_0,blocks.0,torch.nn.modules.activation.ReLU"}})");
  return changed(text, R"("metadata": {}}],)", R"("metadata": {"nn_module_stack": ")" + blocks + R"("}}],)");
}

TEST(ExportedModule, Y02_ProfilesNameTheModulesOfTheProgram) {
  const Folder folder;
  const std::string path = folder / "net.pt2";
  save(path, with_nested_modules());
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const auto net = exported::load(path);
    const at::Tensor x = distribute_tensor(make_tensor({7, 3}, 3), mesh, {shard(0)});
    Profiler profiler(mesh->group().shared_from_this());
    profiler.start();
    call(net, x);
    {
      const InModule outer("Outer"), part("parts.1");
      call(net, x);
    }
    profiler.stop();
    std::map<std::string, int64_t> calls;
    for (const auto& row : profiler.summary().table(ProfileBy::kModule)) calls[row.name] = row.calls;
    for (const char* name : {"Net", "Net:fc", "Net:blocks", "Net:blocks.0", "Outer:parts.1", "Outer:parts.1.fc",
                             "Outer:parts.1.blocks", "Outer:parts.1.blocks.0"})
      EXPECT_EQ(calls[name], 2) << name << ", one call of each of 2 ranks";
  });
}

TEST(ExportedModule, Y02_StepsAreSeenWithTheirModules) {
  const Folder folder;
  const std::string path = folder / "net.pt2";
  save(path, with_nested_modules());
  const exported::ExportedProgram program(path, std::nullopt);
  std::vector<std::string> modules;

  program.run({make_tensor({4, 3}, 3)}, [&](const std::string& module) { modules.push_back(module); });

  EXPECT_THAT(modules, ::testing::ElementsAre("fc", "", "", "", "blocks.0", "blocks"));
}

// The same with relu in two scopes of gradients, one in the other, whose graphs name no modules.
std::string with_nested_graphs() {
  const std::string relu = R"({"target": "torch.ops.aten.relu.default", "outputs": [{"as_tensor": {"name": "r"}}],
         "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "h"}}}], "metadata": )";
  const auto within = [](const std::string& node) {
    return R"({"target": "torch.ops.higher_order.wrap_with_set_grad_enabled", "outputs": [{"as_tensors": [{"name": "r"}]}],
      "inputs": [{"name": "", "arg": {"as_bool": true}}, {"name": "", "arg": {"as_graph": {"name": "body", "graph": {
        "inputs": [{"as_tensor": {"name": "h"}}], "outputs": [{"as_tensor": {"name": "r"}}], "nodes": [)" +
           node + R"({}}]}}}}, {"name": "", "arg": {"as_tensor": {"name": "h"}}}], "metadata": )";
  };
  return changed(with_nested_modules(), relu, within(within(relu)));
}

TEST(ExportedModule, Y02_StepsOfInnerGraphsHaveTheModuleAroundThem) {
  const Folder folder;
  const std::string path = folder / "net.pt2";
  save(path, with_nested_graphs());
  const exported::ExportedProgram program(path, std::nullopt);
  std::vector<std::string> modules;

  program.run({make_tensor({4, 3}, 3)}, [&](const std::string& module) { modules.push_back(module); });

  EXPECT_THAT(modules, ::testing::ElementsAre("fc", "", "", "", "blocks.0", "blocks.0", "blocks.0", "blocks"));
}

TEST(ExportedModule, Y02_DeferredParametersAreReadByTheirOwners) {
  const Folder folder;
  const std::string path = folder / "net.pt2";
  const at::Tensor w = make_tensor({3000, 3}, 1), b = make_tensor({3000}, 2), x = make_tensor({7, 3}, 3);
  save(path, kProgram, "3000", w, b);
  const at::Tensor expected = at::relu(at::linear(x, w, b)) * 14;
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const int64_t begin = bytes_read_here();
    const auto net = deferred_init([&] { return exported::load(path); });
    EXPECT_TRUE(is_deferred(net->named_parameters()["fc.weight"]));
    EXPECT_TRUE(net->named_parameters()["fc.weight"].requires_grad());
    EXPECT_FALSE(is_deferred(net->named_buffers()["calls"]));
    const int64_t loaded = bytes_read_here();
    EXPECT_LT(loaded - begin, 24000) << "the program alone";
    parallelize_module(net, mesh, parse_plan(R"json({"parameter": {"fc.weight": "S(0, {2000, 0, 1000})"}})json"));
    materialize_module(*net);  // the bias, if it is left
    const at::Tensor mine = net->named_parameters()["fc.weight"];
    const auto needed = static_cast<int64_t>(to_local(mine).nbytes() + b.nbytes());
    const int64_t read = bytes_read_here() - loaded;
    EXPECT_GE(read, needed);
    EXPECT_LT(read, needed + 1000);
    EXPECT_EQ(difference(full_tensor(mine.detach()), w, 0), "");
    EXPECT_EQ(difference(whole(call(net, x).detach()), expected, 1e-10), "");
  });
  const auto net = deferred_init([&] { return exported::load(path); });
  EXPECT_THAT(message_of([&] { net->forward(x); }), HasSubstr("give it values first"));
  materialize_module(*net);
  EXPECT_EQ(difference(net->forward(x).detach(), expected, 1e-10), "");
}

TEST(ExportedModule, Y02_DeferredParametersOfAFileThatWasCutShort) {
  const Folder folder;
  const std::string path = folder / "net.pt2";
  save(path, kProgram, "3000", make_tensor({3000, 3}, 1), make_tensor({3000}, 2));
  const auto net = deferred_init([&] { return exported::load(path); });
  std::filesystem::resize_file(path, 20000);
  EXPECT_THAT(message_of([&] { materialize_module(*net); }), HasSubstr("net.pt2' cannot be read"));
  save(path, kProgram, "3001", make_tensor({3000, 3}, 1), make_tensor({3000}, 2));
  EXPECT_THAT(message_of([&] { deferred_init([&] { return exported::load(path); }); }),
              HasSubstr("'data/weights/weight_0' has 72000 bytes, its tensor needs 9003 elements"));
}

TEST(ExportedModule, Y02_ErrorsNameInputsModulesAndLines) {
  const Folder folder;
  const std::string path = folder / "net.pt2";
  save(path, kProgram);
  const auto net = exported::load(path);
  const auto said = [&](const at::Tensor& x) { return message_of([&] { net->forward(x); }); };
  EXPECT_THAT(said(make_tensor({10, 3}, 1)),
              HasSubstr("'x' has 10 in dim 0\n  have  the program was exported for 2 to 9"));
  EXPECT_THAT(said(make_tensor({1, 3}, 1)), HasSubstr("'x' has 1 in dim 0"));
  EXPECT_THAT(said(make_tensor({4, 2}, 1)), HasSubstr("'x' has 2 in dim 1, the program was exported for 3"));
  EXPECT_THAT(said(make_tensor({4, 3}, 1).to(at::kFloat)),
              HasSubstr("\n  module fc\n  model /home/net.py:20: h = self.fc(x)"));
  EXPECT_THAT(message_of([&] { net->eval(); }), HasSubstr("keeps the mode"));
}

TEST(ExportedModule, Y02_DamagedFilesAreOneError) {
  const Folder folder;
  const std::string path = folder / "bad.pt2";
  const auto said = [&](const std::string& program, const std::string& rows = "4") {
    save(path, program, rows);
    return message_of([&] { exported::load(path); });
  };
  EXPECT_EQ(said(kProgram), "");
  EXPECT_THAT(said("{"), HasSubstr("holds no program that can be read"));
  EXPECT_THAT(said("{}"), HasSubstr("holds no program that can be read"));
  EXPECT_THAT(said(kProgram, "5"), HasSubstr("'data/weights/weight_0' has 96 bytes, its tensor needs 15 elements"));
  EXPECT_THAT(said(kProgram, "9223372036854775807"), HasSubstr("a stored tensor has sizes"));
  EXPECT_THAT(said(kProgram, "-4"), HasSubstr("a stored tensor has sizes"));
  EXPECT_THAT(said(changed(kProgram, "aten.linear.default", "aten.lineal.default")),
              HasSubstr("'aten::lineal' is not in this LibTorch"));
  EXPECT_THAT(said(changed(kProgram, R"({"name": "h"}}])", R"({"name": "g"}}])")),
              HasSubstr("uses 'h' before it is computed"));
  EXPECT_THAT(said(changed(kProgram, R"("major": 8)", R"("major": 9)")),
              HasSubstr("has another schema of torch.export\n  have  9.17"));
  EXPECT_THAT(said(changed(kProgram, "torch.ops.aten.relu.default", "torch.ops.higher_order.scan")),
              HasSubstr("the higher-order operator 'scan' is not done"));
  EXPECT_THAT(said(changed(kProgram, "_operator.mul", "_operator.xor")),
              HasSubstr("the program computes '_operator.xor'"));
  EXPECT_THAT(said(changed(kProgram, R"("name": "weight", "arg")", R"("name": "height", "arg")")),
              HasSubstr("lacks the argument 'weight'"));
}

}  // namespace
}  // namespace moonhalo::testing::test_exported_module
