// SPDX-License-Identifier: Apache-2.0
// shows:
//  * a simulation with its own block decomposition hands its memory over without a copy
//  * an unmodified torch::nn model and torch::optim train on those blocks, while the solver runs
//  * the trained network then advances the same arrays
//
//     embed_heat [ranks]                 ranks as threads (default 3)
//     mpirun -n 3 embed_heat             ranks as MPI processes
#include <moonhalo/moonhalo.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "heat_solver.h"

namespace mh = moonhalo;

namespace {

constexpr int64_t kRows = 67, kColumns = 48;
constexpr int kLeap = 2;  // solver steps that the network takes at once

// The network: the field plus a linear 5 x 5 stencil, as wide as two steps of the solver reach.
struct Leap : torch::nn::Module {
  torch::nn::Conv2d stencil{nullptr};
  Leap() {
    stencil = register_module("stencil", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 1, 5).padding(2).bias(false)));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    stencil->weight.zero_();
  }
  at::Tensor forward(const at::Tensor& u) { return u + stencil(u); }
};

// The solver's rows as this rank's block of the global field [1, 1, rows, columns]: no copy, ghost rows left out.
at::Tensor as_shard_tensor(HeatSolver& solver, const mh::MeshPtr& mesh) {
  const at::Tensor block = at::from_blob(solver.owned(), {1, 1, solver.rows(), kColumns}, at::kDouble);
  at::Tensor field = mh::from_local(block, mesh, {mh::shard(2)});
  TORCH_CHECK(mh::to_local(field).data_ptr() == solver.owned(), "the block was copied");
  return field;
}

double rms(const at::Tensor& x) { return x.square().mean().sqrt().item<double>(); }

void run(mh::Communicator& world) {
  const auto mesh = mh::init_device_mesh(world, "cpu", {world.size()}, {"rows"});
  HeatSolver solver(world, kRows, kColumns);
  Leap net;
  torch::optim::Adam optimizer(net.parameters(), torch::optim::AdamOptions(1e-2));

  // In situ training: at every leap the solver shows where it was and where it got to.
  double loss_value = 0;
  const int leaps = 3200;
  for (int leap = 0; leap < leaps; ++leap) {
    if (leap % 8 == 0) solver.start(leap / 8);
    const at::Tensor before = as_shard_tensor(solver, mesh).clone();
    for (int step = 0; step < kLeap; ++step) solver.step();
    const at::Tensor after = as_shard_tensor(solver, mesh);

    optimizer.zero_grad();
    const at::Tensor loss = at::mse_loss(net.forward(before), after);
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
    if (leap == leaps / 2) {
      for (auto& group : optimizer.param_groups()) group.options().set_lr(1e-3);
    }
  }

  // Use: one field twice, once advanced by the solver, once by the network writing into a solver's own array.
  const c10::NoGradGuard no_grad;
  HeatSolver surrogate(world, kRows, kColumns);
  solver.start(1000);
  surrogate.start(1000);
  const at::Tensor truth = as_shard_tensor(solver, mesh), field = as_shard_tensor(surrogate, mesh);
  const at::Tensor start = truth.clone();
  for (int leap = 0; leap < 10; ++leap) {
    field.copy_(net.forward(field));
    for (int step = 0; step < kLeap; ++step) solver.step();
  }
  const double change = rms(truth - start), error = rms(truth - field);
  if (world.rank() == 0) {
    std::printf("%d ranks over %s, blocks of rows:", world.size(), world.backend());
    for (const int64_t rows : mh::spec(truth)->block_sizes(2)) std::printf(" %lld", static_cast<long long>(rows));
    std::printf("\nfinal training loss                  %.12e\n", loss_value);
    std::printf("the field changed by (rms)           %.6f\n", change);
    std::printf("network against solver, 10 leaps (rms) %.6f  = %.2f %% of the change\n", error, 100 * error / change);
  }
  TORCH_CHECK(error < 0.1 * change, "the network is not a use: error ", error, " of a change of ", change);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const mh::Launch launch = mh::detect_launch();
    if (launch.size > 1) {
      const auto world = mh::make_mpi_world();
      try {
        run(*world);
      } catch (const std::exception& error) {
        world->abort(error.what());  // or the other ranks would wait for this one
        throw;
      }
    } else {
      mh::run_ranks(argc > 1 ? std::atoi(argv[1]) : 3, run);
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "embed_heat: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed_heat: %s\n", error.what());
    return 1;
  }
  return 0;
}
