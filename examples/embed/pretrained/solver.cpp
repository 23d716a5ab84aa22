// SPDX-License-Identifier: Apache-2.0
// solver.f90 in C++, on tensors and without a script: mpirun -n 3 pretrained_cpp unet.pt2 u.pt
#include <moonhalo/exported.h>
#include <moonhalo/io/pytorch/pt_write.h>
#include <moonhalo/moonhalo.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace mh = moonhalo;

constexpr int kRows = 44, kColumns = 36, kSteps = 3;

static void solve(const mh::CommunicatorPtr& world, const char* model, const char* output) {
  const int rank = world->rank(), ranks = world->size();
  const int first = kRows * rank * (rank + 1) / (ranks * (ranks + 1));  // each rank has more rows than the rank before
  const int owned = kRows * (rank + 1) * (rank + 2) / (ranks * (ranks + 1)) - first;
  std::vector<double> u;
  for (int i = first; i < first + owned; ++i) {
    for (int j = 0; j < kColumns; ++j) u.push_back(std::sin(0.3 * (i + 1)) * std::cos(0.2 * (j + 1)));
  }

  const at::NoGradGuard no_grad;
  const mh::MeshPtr mesh = mh::init_device_mesh(*world, "cpu", {ranks}, {"rows"});
  const auto net = mh::exported::load(model);
  const at::Tensor block = at::from_blob(u.data(), {1, 1, owned, kColumns}, at::kDouble);
  const at::Tensor field = mh::from_local(block, mesh, {mh::shard(2)});  // the memory of u
  for (int step = 0; step < kSteps; ++step) field.add_(net->forward(field), 0.1);
  const at::Tensor whole = mh::full_tensor(field)[0][0];
  if (rank == 0) mh::io::save_pt(output, {{"u", whole}});
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const mh::CommunicatorPtr world = mh::make_mpi_world();
  try {
    solve(world, argv[1], argv[2]);
  } catch (const std::exception& error) {
    world->abort(error.what());  // or the other ranks would wait for this one
    throw;
  }
}
