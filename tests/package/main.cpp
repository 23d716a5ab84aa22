// SPDX-License-Identifier: Apache-2.0
// A program of a user's, built against the installed package: a sharded convolution and its gradient on four ranks
// that are threads, compared with the same on one plain tensor.
#include <moonhalo/moonhalo.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>

namespace mh = moonhalo;

namespace {

void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("not so: ") + what);
}

}  // namespace

int main() {
  const at::Tensor full = at::arange(2 * 3 * 11 * 7, at::kDouble).reshape({2, 3, 11, 7}).sin();
  const at::Tensor kernel = at::arange(4 * 3 * 3 * 3, at::kDouble).reshape({4, 3, 3, 3}).cos();
  at::Tensor leaf = full.clone().requires_grad_();
  const at::Tensor expected = at::conv2d(leaf, kernel, {}, 1, 1);
  expected.square().sum().backward();

  std::atomic<int> ranks_done = 0;
  mh::run_ranks(4, [&](mh::Communicator& world) {
    auto mesh = mh::init_device_mesh(world, "cpu", {2, 2}, {"data", "domain"});
    at::Tensor x = mh::distribute_tensor(full, mesh, {mh::shard(0), mh::shard(2)}).requires_grad_();
    const at::Tensor y = at::conv2d(x, kernel, {}, 1, 1);
    y.square().sum().backward();

    expect(mh::is_shard_tensor(y), "the result is a ShardTensor");
    expect(at::allclose(mh::full_tensor(y), expected), "the sharded convolution equals the plain one");
    expect(at::allclose(mh::full_tensor(x.grad()), leaf.grad()), "its gradient equals the plain one");
    ++ranks_done;
  });
  expect(ranks_done == 4, "four ranks ran");
  std::puts("moonhalo: a sharded convolution and its gradient equal the plain ones on 4 ranks");
}
