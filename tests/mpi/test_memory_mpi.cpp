// SPDX-License-Identifier: Apache-2.0
// X11: fields larger than a rank may hold: read, trained on and written back, with the peak memory of every process
// measured.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adam.h>

#include <optional>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/process_memory.h"

namespace moonhalo::io {
namespace {

constexpr int64_t kRows = 2048, kColumns = 4096, kChannels = 8;  // float32: 256 MiB
constexpr int64_t kHalo = 2;                                     // rows: two convolutions of 3 x 3
constexpr double kMiB = 1 << 20;
constexpr double kSpare = 24 * kMiB;  // buffers of HDF5, of MPI and of the kernels; code that is run for the first time

double growth(const std::function<void()>& work) { return testing::memory_growth(work); }

/// One step towards the field itself, through two channels; returns what the network had made of it.
at::Tensor trained(const at::Tensor& field) {
  torch::nn::Conv2d enter(torch::nn::Conv2dOptions(kChannels, 2, 3).padding(1)),
      leave(torch::nn::Conv2dOptions(2, kChannels, 3).padding(1));
  {
    const at::NoGradGuard no_grad;  // the same weights on every rank
    for (auto* conv : {&enter, &leave}) {
      (*conv)->weight.copy_(
          at::arange((*conv)->weight.numel(), at::kFloat).mul_(0.7).cos_().mul_(0.1).view_as((*conv)->weight));
      (*conv)->bias.zero_();
    }
  }
  std::vector<at::Tensor> parameters = enter->parameters();
  for (const at::Tensor& p : leave->parameters()) parameters.push_back(p);
  torch::optim::Adam optimizer(parameters, 1e-3);
  const at::Tensor prediction = leave(at::tanh(enter(field)));
  at::mse_loss(prediction, field).backward();
  optimizer.step();
  return prediction.detach();
}

/// A folder that every rank sees, made and removed by rank 0.
struct SharedFile {
  explicit SharedFile(Communicator& world) : world(world) {
    if (world.rank() == 0) folder.emplace();
    path = world.all_gather_strings(folder ? *folder / "field.h5" : "").front();
  }
  ~SharedFile() { world.barrier(); }

  Communicator& world;
  std::optional<testing::Folder> folder;
  std::string path;
};

/// The first rank has more rows than the others, the last fewer.
std::vector<int64_t> uneven_rows(int64_t ranks) {
  std::vector<int64_t> rows(ranks, kRows / ranks);
  const int64_t more = rows.front() / 3;
  rows.front() += more + kRows % ranks;
  rows.back() -= more;
  return rows;
}

double bytes_of(int64_t rows) { return static_cast<double>(rows * kColumns * kChannels * 4); }

/// The blocks alone are made.
at::Tensor field_of(const MeshPtr& mesh, const std::vector<int64_t>& rows) {
  const int64_t mine = rows[mesh->rank()];
  at::Tensor values =
      at::arange(kColumns, at::kFloat).mul_(0.01f).sin_().expand({1, kChannels, mine, kColumns}).contiguous();
  return from_local(values, mesh, {shard(2, rows)});
}

//     rank    rows of the file         may take, at its peak
//      0      |0 .. 819|               what the same step takes on a plain field of its block and halo
//      1           |820 .. 1228|       likewise, though other blocks are larger
//
// The whole field is more blocks than the allowance on top, so a copy of it anywhere would be seen.
TEST(MpiMemory, X11_AFieldIsReadTrainedOnAndWrittenByBlocksAlone) {
  const CommunicatorPtr world = make_mpi_world();
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {world->size()});
  const SharedFile file(*world);
  const std::vector<int64_t> rows = uneven_rows(world->size());
  const int64_t mine = rows[world->rank()];
  const double block = bytes_of(mine), with_halo = bytes_of(mine + 2 * kHalo), whole = bytes_of(kRows);
  trained(at::ones({1, kChannels, 64, 64}));
  trained(from_local(at::ones({1, kChannels, 64, 64}), mesh, {shard(2)}));

  at::Tensor field;
  const double made = growth([&] {
    File out = open(file.path, "w");
    out.write("field", field_of(mesh, rows));
    out.close();
  });
  EXPECT_LE(made, block + kSpare);

  const File in = open(file.path);
  const double read = growth([&] { field = scatter_tensor(in["field"], mesh, {shard(2, rows)}); });
  EXPECT_LE(read, block + kSpare);
  EXPECT_GE(read, 0.9 * block);  // the figures mean something

  at::Tensor result;
  const double sharded = growth([&] { result = trained(field); });
  const double saved = growth([&] {
    File out = open(file.path, "a");
    out.write("result", result);
    out.close();
  });
  EXPECT_LE(saved, kSpare);
  EXPECT_EQ(to_local(result).sizes(), to_local(field).sizes());

  result.reset();
  const double plain = growth([&] {
                         result = trained(at::ones({1, kChannels, mine + 2 * kHalo, kColumns}));
                       }) -
                       with_halo;
  EXPECT_LE(sharded, plain + kSpare);
  EXPECT_GT(whole - block, 2 * kSpare);

  std::printf(
      "[ figures  ] rank %d of %d: block %.0f MiB of %.0f; written %.0f, read %.0f, trained %.0f (plain %.0f), saved "
      "%.0f\n",
      world->rank(), world->size(), block / kMiB, whole / kMiB, made / kMiB, read / kMiB, sharded / kMiB, plain / kMiB,
      saved / kMiB);
  world->barrier();
}

// Compressed chunks, each of rows that all ranks share.
TEST(MpiMemory, X11_AFieldInSharedChunksIsWrittenAndReadByBlocksAlone) {
  const CommunicatorPtr world = make_mpi_world();
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {world->size()});
  const SharedFile file(*world);
  const std::vector<int64_t> rows = uneven_rows(world->size());
  const double block = bytes_of(rows[world->rank()]), rounds = 32 * kMiB;
  const at::Tensor field = field_of(mesh, rows);

  const double written = growth([&] {
    File out = open(file.path, "w");
    out.write("field", field, {.chunks = {1, 1, kRows, kColumns / 16}, .compression = 1});
    out.close();
  });
  EXPECT_LE(written, rounds + kSpare);

  at::Tensor back;
  const double read = growth([&] { back = scatter_tensor(open(file.path)["field"], mesh, {shard(2, rows)}); });
  EXPECT_LE(read, block + rounds + kSpare);
  EXPECT_TRUE(at::equal(to_local(back), to_local(field)));

  std::printf("[ figures  ] rank %d of %d: block %.0f MiB; in chunks written %.0f, read %.0f\n", world->rank(),
              world->size(), block / kMiB, written / kMiB, read / kMiB);
  world->barrier();
}

}  // namespace
}  // namespace moonhalo::io
