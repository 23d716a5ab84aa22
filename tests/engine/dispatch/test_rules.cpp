// SPDX-License-Identifier: Apache-2.0
// Plans find arguments by name, and run functions reach them through LocalCall.
#include "moonhalo/engine/dispatch/rules.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_rules {
namespace {

using at::Tensor;

// One operator in two orders of its arguments.
std::tuple<Tensor, Tensor> scaled(const Tensor& x, double by, const std::optional<Tensor>& offset) {
  return {x * by, offset ? x + *offset : x.clone()};
}
std::tuple<Tensor, Tensor> scaled_reordered(const std::optional<Tensor>& offset, double by, const Tensor& x) {
  return scaled(x, by, offset);
}
void add_into(Tensor x, double by) { x.add_(by); }

TORCH_LIBRARY(moonhalo_test_rules, library) {
  library.def("scaled(Tensor x, float by, Tensor? offset=None) -> (Tensor, Tensor)", &scaled);
  library.def("scaled.reordered(Tensor? offset, float by, Tensor x) -> (Tensor, Tensor)", &scaled_reordered);
  library.def("add_into(Tensor(a!) x, float by) -> ()", &add_into);
}

c10::OperatorHandle operator_of(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

// A call in the order of the schema, above a number that is not part of it.
Stack stack_of(const c10::OperatorHandle& op, const Tensor& x, double by, const c10::IValue& offset) {
  Stack stack{7};
  for (const auto& argument : op.schema().arguments()) {
    const std::string& name = argument.name();
    stack.push_back(name == "x" ? c10::IValue(x) : name == "by" ? c10::IValue(by) : offset);
  }
  return stack;
}

TEST(LocalCall, FindsArgumentsByNameInAnyOrderOfTheSchema) {
  const Tensor full = make_tensor({5, 2}, 1), plain = make_tensor({5, 2}, 2);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const Tensor x = shard_of(full, mesh, {shard(0)});
    for (const char* overload : {"", "reordered"}) {
      const auto op = operator_of("moonhalo_test_rules::scaled", overload);
      Stack planned = stack_of(op, x, 3, c10::IValue()), local = stack_of(op, plain, 3, c10::IValue());
      const OpCall plan(op, planned);
      const Arg at_x = plan.arg("x"), at_by = plan.arg({"factor", "by"}), at_offset = plan.arg("offset");
      EXPECT_EQ(plan.tensor("x").spec, spec(x));
      EXPECT_EQ(plan.spec(at_x), spec(x));
      EXPECT_EQ(plan.value(at_by).toDouble(), 3);
      EXPECT_FALSE(plan.find({"factor", "bias"}));
      EXPECT_FALSE(plan.writes("x"));
      EXPECT_THROW(plan.arg("factor"), c10::Error);

      LocalCall call(op, local);
      EXPECT_TRUE(call.tensor(at_x).is_same(plain));
      EXPECT_FALSE(call.tensor(at_offset).defined());
      EXPECT_FALSE(call.tensor(Arg{}).defined());
      const Stack beside = call.run_with({{at_by, 5.0}, {at_offset, plain}});
      EXPECT_TRUE(beside.at(0).toTensor().equal(plain * 5));
      EXPECT_TRUE(beside.at(1).toTensor().equal(plain + plain));

      EXPECT_EQ(call.value(at_by).toDouble(), 3) << "run_with() changed the call";
      call.value(at_by) = 4.0;
      call.run();
      EXPECT_EQ(call.values().size(), 2u);
      const Tensor second = call.result(1), first = call.result();
      EXPECT_TRUE(first.equal(plain * 4));
      call.give(second);
      call.add(first);
      ASSERT_EQ(local.size(), 3u);
      EXPECT_EQ(local[0].toInt(), 7);
      EXPECT_TRUE(local[1].toTensor().is_same(second) && local[2].toTensor().is_same(first));
    }
  });
}

// The result that is given may be an argument that is dropped with the call.
TEST(LocalCall, GivesItsOwnArguments) {
  const auto op = operator_of("moonhalo_test_rules::scaled", "");
  const Tensor x = make_tensor({2}, 1), offset = make_tensor({2}, 2);
  Stack stack = stack_of(op, x, 3, offset);
  LocalCall call(op, stack);

  call.give(call.tensor(Arg{2}), call.tensor(Arg{0}));

  ASSERT_EQ(stack.size(), 3u);
  EXPECT_TRUE(stack[1].toTensor().is_same(offset) && stack[2].toTensor().is_same(x));
}

TEST(OpCall, KnowsWhatIsWritten) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    Stack stack{shard_of(make_tensor({4}, 1), mesh, {shard(0)}), 2.0};
    const OpCall call(operator_of("moonhalo_test_rules::add_into", ""), stack);
    EXPECT_TRUE(call.writes("x"));
    EXPECT_FALSE(call.writes("by"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_rules
