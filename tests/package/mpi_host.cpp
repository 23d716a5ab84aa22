// SPDX-License-Identifier: Apache-2.0
// A C++ program that initialises MPI itself and trains on its own blocks, against the installed package (X15):
//     mpirun -n N mpi_host
#include <moonhalo/moonhalo.h>
#include <moonhalo/mpi_communicator.h>
#include <mpi.h>

#include <cstdio>
#include <vector>

namespace mh = moonhalo;

namespace {

constexpr int64_t kRows = 13, kColumns = 6;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

double value(int64_t i, int64_t j) { return 0.01 * static_cast<double>(i * i) - 0.1 * static_cast<double>(j % 4); }

/// The gradient of a convolution's weights over a field.
at::Tensor kernel_gradient(const at::Tensor& field) {
  at::Tensor kernel = at::arange(9, at::kDouble).reshape({1, 1, 3, 3}).cos().requires_grad_();
  at::conv2d(field.unsqueeze(0).unsqueeze(0), kernel, {}, 1, 1).square().sum().backward();
  return kernel.grad();
}

void run(const mh::CommunicatorPtr& world) {
  // Rows of this rank, the last has what is left over; a ghost cell on every side, and more space behind each row.
  const int64_t rank = world->rank(), ranks = world->size(), share = kRows / ranks;
  const int64_t begin = share * rank, rows = rank + 1 == ranks ? kRows - begin : share, pitch = kColumns + 2 + 3;
  std::vector<double> memory((rows + 2) * pitch, -7);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) memory[(i + 1) * pitch + j + 1] = value(begin + i, j);
  }
  mh::Block block{memory.data(), at::kDouble, {rows + 2, kColumns + 2}};
  block.stride = {pitch, 1};
  block.ghost_low = block.ghost_high = {1, 1};
  block.begin = {begin, 0};
  const mh::MeshPtr mesh = mh::init_device_mesh(*world, "cpu", {ranks}, {"rows"});
  at::Tensor field = mh::as_shard_tensor(block, mesh);
  expect(mh::to_local(field).data_ptr() == &memory[pitch + 1], "nothing was copied");

  at::Tensor whole = at::empty({kRows, kColumns}, at::kDouble);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) whole[i][j] = value(i, j);
  }
  expect(at::allclose(kernel_gradient(field), kernel_gradient(whole), 1e-12),
         "the gradient is that of the whole field");
  field.mul_(2);
  expect(memory[pitch + 1] == 2 * value(begin, 0) && memory[0] == -7 && memory.back() == -7,
         "written in place, ghosts left alone");
  std::printf("moonhalo: rank %d of %d of a host's MPI\n", world->rank(), world->size());
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  run(mh::make_mpi_communicator(MPI_COMM_WORLD));
  MPI_Finalize();
}
