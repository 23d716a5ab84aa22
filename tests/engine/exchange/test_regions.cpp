// SPDX-License-Identifier: Apache-2.0
// Regions copied and added by one launch, against a loop of LibTorch's operators. The kernels' code runs on
// simulated devices, whose threads begin with the last.
#include "moonhalo/engine/exchange/regions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::test_regions {
namespace {

using testing::difference;
namespace fake = testing::fake;

class Regions : public ::testing::Test {
 protected:
  void SetUp() override { fake::install(); }

  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }
  // A box in `shape`, perhaps an empty one.
  std::pair<std::vector<int64_t>, std::vector<int64_t>> box_in(at::IntArrayRef shape) {
    std::vector<int64_t> begin, length;
    for (const int64_t extent : shape) {
      begin.push_back(below(extent));
      length.push_back(below(extent - begin.back() + 1));
    }
    return {begin, length};
  }
  at::Tensor numbers(at::IntArrayRef shape, at::ScalarType type) {
    const at::Tensor values = testing::make_tensor(shape, static_cast<int>(below(1000))) * 100;
    return at::isComplexType(type) ? at::complex(values, values + 1).to(type) : values.to(type);
  }

  std::mt19937 random_{5};
};

at::Tensor part(const at::Tensor& tensor, at::IntArrayRef begin, at::IntArrayRef length) {
  at::Tensor view = tensor;
  for (int64_t d = 0; d < tensor.dim(); ++d) view = view.narrow(d, begin[d], length[d]);
  return view;
}

const at::ScalarType kTypes[] = {at::kDouble, at::kFloat,        at::kHalf,          at::kBFloat16, at::kBool,
                                 at::kLong,   at::kComplexFloat, at::kComplexDouble, at::kChar,     at::kShort};

TEST_F(Regions, S16_CopiesAreThoseOfALoop) {
  for (const at::ScalarType type : kTypes) {
    for (int64_t dims = 0; dims <= 7; ++dims) {  // one more than the kernels take
      const std::vector<int64_t> shape(dims, dims > 4 ? 3 : 5);
      const at::Tensor host = numbers(shape, type), there = host.to(fake::device(0));
      at::Tensor expected = at::zeros(shape, type), got = expected.to(fake::device(0));
      std::vector<RegionCopy> copies;
      // Slabs of the first dim, one after the other, from other places and strides.
      for (int64_t row = 0; row < (dims == 0 ? 1 : shape[0]); ++row) {
        std::vector<int64_t> begin(dims, 0), length = shape, from(dims, 0);
        if (dims > 0) {
          begin[0] = row;
          from[0] = below(shape[0]);
          length[0] = 1;
        }
        if (dims > 1) length[1] = below(shape[1] + 1);
        const auto turned = [&](const at::Tensor& t) {
          return dims > 1 ? part(t, from, length).transpose(0, dims - 1).contiguous().transpose(0, dims - 1)
                          : part(t, from, length);
        };
        part(expected, begin, length).copy_(part(host, from, length));
        copies.push_back({turned(there), part(got, begin, length)});
      }
      copy_regions(copies);
      EXPECT_EQ(difference(got.cpu(), expected, 0), "") << type << " of " << dims << " dims";
    }
  }
}

// Also where regions overlap, in the order that they are given in: sums in half types show it.
TEST_F(Regions, S16_SumsAreThoseOfALoopInOrder) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kLong}) {
    for (const int regions : {1, 7, 40}) {
      const std::vector<int64_t> shape{3, 6, 5};
      at::Tensor expected = numbers(shape, type), got = expected.to(fake::device(0));
      std::vector<RegionSum> here, there;
      for (int r = 0; r < regions; ++r) {
        const auto [begin, length] = box_in(shape);
        here.push_back({begin, numbers(length, type)});
        there.push_back({begin, here.back().part.to(fake::device(0))});
      }
      add_regions(expected, here);
      add_regions(got, there);
      EXPECT_EQ(difference(got.cpu(), expected, 0), "") << type << ", " << regions << " regions";
    }
  }
}

TEST_F(Regions, S16_OneLaunchForThirtyTwo) {
  const at::Tensor from = at::ones({33, 2}, fake::device(0)), to = at::zeros({33, 2}, fake::device(0));
  const auto launches_for = [&](int64_t count) {
    std::vector<RegionCopy> copies;
    for (int64_t i = 0; i < count; ++i) copies.push_back({from[i], to[i]});
    const int64_t before = fake::counts().launches;
    copy_regions(copies);
    return fake::counts().launches - before;
  };

  EXPECT_EQ(launches_for(0), 0);
  EXPECT_EQ(launches_for(1), 1);
  EXPECT_EQ(launches_for(32), 1);
  EXPECT_EQ(launches_for(33), 2);
  EXPECT_EQ(to.cpu().sum().item<double>(), 66);
}

// The host's clock would say that everything was hidden.
TEST_F(Regions, G1_ExchangesOfDevicesAreCountedButNotTimed) {
  for (const char* device : {"cpu", "fake"}) {
    testing::on_ranks(2, [&](Communicator& world) {
      const MeshPtr mesh = init_device_mesh(world, device, {2});
      const SpecPtr spec = make_spec(mesh, {6, 3}, {shard(0)});
      const IntervalMap map(spec, [&](int64_t rank) {
        std::vector<HaloRequest> requests = requests_for(block_box(*spec, rank));
        requests[0].rows.end += 1;
        return requests;
      });
      const HaloTimes before = halo_times();
      gather(map, at::ones(spec->local_shape(), device_of(*mesh)));
      const HaloTimes made = halo_times() - before;
      EXPECT_EQ(made.exchanges, 1);
      EXPECT_EQ(made.under_way > 0, device == std::string("cpu"));
    });
  }
}

}  // namespace
}  // namespace moonhalo::test_regions
