// SPDX-License-Identifier: Apache-2.0
#include "tests/support/desync.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo::testing {
namespace {

using at::Tensor;
using Counts = std::vector<int64_t>;

bool odd(const Communicator& comm) { return comm.rank() == comm.size() - 1; }

MeshPtr row_of(Communicator& comm) { return init_device_mesh(comm, "cpu", {comm.size()}, {"x"}); }

// Two tensors of one shape, cut in the same way.
struct Fields {
  explicit Fields(Communicator& comm)
      : mesh(row_of(comm)),
        u(from_local(at::full({2, 3}, 1.0 + comm.rank()), mesh, {shard(0)})),
        v(from_local(at::full({2, 3}, 100.0), mesh, {shard(0)})) {}
  MeshPtr mesh;
  Tensor u, v;
};

void reduce(Communicator& comm, int64_t n, ReduceOp op = ReduceOp::kSum, at::ScalarType dtype = at::kFloat) {
  Tensor data = at::ones({n}, dtype);
  comm.all_reduce(data, op);
}

void gather(Communicator& comm, int64_t more) {
  Counts counts(comm.size(), 2);
  counts[0] += more;
  Tensor out = at::ones({2 * comm.size() + more});
  comm.all_gather(at::ones({counts[comm.rank()]}), counts, out);
}

void scatter_sums(Communicator& comm, ReduceOp op) {
  Tensor out = at::ones({2});
  comm.reduce_scatter(at::ones({2 * comm.size()}), Counts(comm.size(), 2), out, op);
}

void turn(Communicator& comm, int64_t sent) {
  Counts send(comm.size(), 0), receive(comm.size(), 0);
  if (comm.rank() == 0) send[1] = sent;
  if (comm.rank() == 1) receive[0] = 3;
  Tensor in = at::ones({sent * (comm.rank() == 0)}), out = at::ones({3 * (comm.rank() == 1)});
  comm.all_to_all(in, send, out, receive);
}

void pass(Communicator& comm, int64_t sent, int64_t expected, at::ScalarType dtype = at::kFloat) {
  std::vector<Message> sends, receives;
  if (comm.rank() == 0) sends.push_back({1, at::ones({sent})});
  if (comm.rank() == 1) receives.push_back({0, at::zeros({expected}, dtype)});
  comm.exchange(std::move(sends), std::move(receives));
}

void broadcast(Communicator& comm, int root) {
  Tensor data = at::ones({3});
  comm.broadcast(data, root);
}

// Weights that differ would be found first, as plain tensors.
struct Unchecked {
  ~Unchecked() { set_check_replicated(before); }
  bool before = set_check_replicated(false);
};

const std::vector<DesyncCase> kDesync = {
    {"all_reduce_of_three_and_four",
     [](Communicator& c) { reduce(c, odd(c) ? 4 : 3); },
     {"all_reduce", "3 elements", "4 elements"}},
    {"small_and_large", [](Communicator& c) { reduce(c, odd(c) ? 400000 : 3); }, {"3 elements", "400000 elements"}},
    {"sum_and_product",
     [](Communicator& c) { reduce(c, 3, odd(c) ? ReduceOp::kProduct : ReduceOp::kSum); },
     {"op sum", "op product"}},
    {"max_and_min",
     [](Communicator& c) { reduce(c, 3, odd(c) ? ReduceOp::kMin : ReduceOp::kMax); },
     {"op max", "op min"}},
    {"dtypes",
     [](Communicator& c) { reduce(c, 3, ReduceOp::kSum, odd(c) ? at::kInt : at::kFloat); },
     {"of Float", "of Int"}},
    {"all_gather_counts", [](Communicator& c) { gather(c, odd(c) ? 1 : 0); }, {"counts [2", "counts [3"}},
    {"reduce_scatter_ops",
     [](Communicator& c) { scatter_sums(c, odd(c) ? ReduceOp::kMax : ReduceOp::kSum); },
     {"op max", "op sum"}},
    {"all_to_all_counts",
     [](Communicator& c) { turn(c, 2); },
     {"all_to_all", "send_counts [0, 2", "receive_counts [3, 0"}},
    {"message_sizes",
     [](Communicator& c) {
       pass(c, 5, 3);
       c.barrier();
     },
     {"exchange", "does not fit"}},
    {"message_dtypes",
     [](Communicator& c) {
       pass(c, 3, 3, at::kInt);
       c.barrier();
     },
     {"exchange", "does not fit"}},
    {"broadcast_roots", [](Communicator& c) { broadcast(c, odd(c) ? 1 : 0); }, {"root 0", "root 1"}},
    {"barrier_and_all_reduce",
     [](Communicator& c) { odd(c) ? c.barrier() : reduce(c, 3); },
     {"barrier", "all_reduce of Float, 3 elements"}},
    {"broadcast_and_all_gather",
     [](Communicator& c) { odd(c) ? broadcast(c, 0) : gather(c, 0); },
     {"broadcast of", "all_gather of"}},
    {"exchange_and_all_reduce",
     [](Communicator& c) {
       odd(c) ? reduce(c, 3) : c.exchange({}, {});
       c.barrier();
     },
     {"all_reduce of Float"}},
    {"exchange_under_way_and_barrier",
     [](Communicator& c) {
       WorkPtr work;
       if (!odd(c)) work = c.exchange_async({}, {});
       c.barrier();
       if (work) work->wait();
     },
     {"barrier (call 1 of this group)"}},
    {"sum_and_mean",
     [](Communicator& c) {
       const Fields f(c);
       odd(c) ? f.u.mean().item<double>() : f.u.sum().item<double>();
     },
     {"made by aten::sum", "made by aten::mean", "on mesh("}},
    {"dims_of_a_sum",
     [](Communicator& c) {
       const Fields f(c);
       full_tensor(f.u.sum(odd(c) ? Counts{0} : Counts{0, 1}, true).expand({1, 3}));
     },
     {"aten::sum"}},
    {"fields_in_another_order",
     [](Communicator& c) {
       const Fields f(c);
       (odd(c) ? f.v : f.u).sum().item<double>();
     },
     {"these look the same", "aten::sum"}},
    {"one_step_more",
     [](Communicator& c) {
       const Fields f(c);
       (odd(c) ? f.u * 2 : f.u).amax().item<double>();
     },
     {"aten::amax <- aten::mul", "made by aten::amax"}},
    {"numbers_that_differ",
     [](Communicator& c) {
       const Fields f(c);
       (f.u * (1.0 + c.rank())).sum().item<double>();
     },
     {"with other numbers", "aten::sum"}},
    {"written_in_place_on_one_rank",
     [](Communicator& c) {
       const Fields f(c);
       if (odd(c)) f.u.add_(1);
       f.u.sum().item<double>();
     },
     {"aten::sum <- aten::add_"}},
    {"random_numbers_drawn_on_one_rank",
     [](Communicator& c) {
       const Fields f(c);
       manual_seed(7);
       if (odd(c)) at::check_generator<at::CPUGeneratorImpl>(default_generator())->random64();
       f.u.normal_().sum().item<double>();
       manual_seed(7);
     },
     {"different random numbers"}},
    {"halos_of_different_kernels",
     [](Communicator& c) {
       const Unchecked weights;
       const MeshPtr mesh = row_of(c);
       const Tensor x = from_local(at::ones({1, 1, 8, 8}), mesh, {shard(2)});
       at::conv2d(x, at::ones({1, 1, odd(c) ? 5 : 3, 3}), {}, 1, {odd(c) ? 2 : 1, 1});
       c.barrier();
     },
     {"exchange", "aten::convolution of ["}},
    {"meshes",
     [](Communicator& c) {
       init_device_mesh(c, "cpu", odd(c) ? Counts{c.size(), 1} : Counts{1, c.size()});
     },
     {"init_device_mesh", "want different meshes", "[1, "}},
    {"mesh_names",
     [](Communicator& c) { init_device_mesh(c, "cpu", {c.size()}, {odd(c) ? "x" : "y"}); },
     {"init_device_mesh", "\"x\"", "\"y\""}},
    {"meshes_of_which_one_does_not_fit",
     [](Communicator& c) { init_device_mesh(c, "cpu", {odd(c) ? c.size() + 1 : c.size()}); },
     {"want different meshes"}},
    {"placements_of_from_local",
     [](Communicator& c) {
       from_local(at::ones({2, 2, 2, 2}), row_of(c), {shard(odd(c) ? 3 : 2)});
     },
     {"from_local of mesh(", "Shard(2)", "Shard(3)"}},
    {"placements_of_distribute_tensor",
     [](Communicator& c) {
       distribute_tensor(at::ones({4, 4}), row_of(c), {odd(c) ? replicate() : shard(0)});
     },
     {"distribute_tensor of mesh(", "Shard(0)", "Replicate()"}},
    {"sources_of_distribute_tensor",
     [](Communicator& c) {
       distribute_tensor(at::ones({4, 4}), row_of(c), {shard(0)}, odd(c) ? 1 : 0);
     },
     {"src 0", "src 1"}},
    {"placements_of_redistribute",
     [](Communicator& c) {
       const Fields f(c);
       redistribute(f.u, {odd(c) ? replicate() : shard(1)});
     },
     {"redistribute of [", "Shard(1", "Replicate()"}},
};

const std::vector<DesyncCase> kHarmless = {
    {"a_rank_looks_at_its_block",
     [](Communicator& c) {
       const Fields f(c);
       if (odd(c)) (to_local(f.u) * 2).sum();
       f.u.sum().item<double>();
     }},
    {"a_rank_computes_what_nobody_needs",
     [](Communicator& c) {
       const Fields f(c);
       if (odd(c)) f.u.mul(3);
       if (odd(c)) at::zeros_like(f.u);
       (f.u + f.v).sum().item<double>();
     }},
    {"another_order_of_calls_that_talk_to_nobody",
     [](Communicator& c) {
       const Fields f(c);
       Tensor a, b;
       if (odd(c)) a = f.u.exp();
       b = f.v.exp();
       if (!odd(c)) a = f.u.exp();
       (a + b).sum().item<double>();
     }},
    {"blocks_that_differ_in_size",
     [](Communicator& c) {
       const Tensor x = from_local(at::ones({1 + c.rank(), 3}), row_of(c), {shard(0)});
       full_tensor(x.mul(2));
       x.sum().item<double>();
     }},
};

}  // namespace

const std::vector<DesyncCase>& desync_cases() { return kDesync; }
const std::vector<DesyncCase>& harmless_cases() { return kHarmless; }

}  // namespace moonhalo::testing
