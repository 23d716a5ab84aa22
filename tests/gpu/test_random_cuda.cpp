// SPDX-License-Identifier: Apache-2.0
// Random numbers made by the kernel of a GPU against those of the CPU (X02): the same bits where sums, products and
// comparisons make them, a few units in the last place where logarithms, cosines and tangents do.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/gpu/gpu.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_random_cuda {
namespace {

using at::Tensor;
using Draw = std::function<Tensor(const Tensor&)>;

class RandomCuda : public OnGpu<> {
 protected:
  const ElementwiseRandom elementwise_;
};

struct Kind {
  const char* name;
  Draw draw;
  double zero = 0;  ///< numbers nearer to zero than that come of a difference, so their errors are relative to it
};

const std::vector<Kind> kExact = {
    {"uniform_", [](const Tensor& x) { return at::empty_like(x).uniform_(-2, 3); }},
    {"uniform_float", [](const Tensor& x) { return at::empty_like(x, at::kFloat).uniform_(); }},
    {"uniform_float_of_a_range", [](const Tensor& x) { return at::empty_like(x, at::kFloat).uniform_(-0.3, 1.7); }},
    {"uniform_half", [](const Tensor& x) { return at::empty_like(x, at::kHalf).uniform_(0, 7); }},
    {"uniform_bfloat16", [](const Tensor& x) { return at::empty_like(x, at::kBFloat16).uniform_(-1, 1); }},
    {"uniform_complex", [](const Tensor& x) { return at::empty_like(x, at::kComplexFloat).uniform_(1, 2); }},
    {"coins", [](const Tensor& x) { return at::empty_like(x, at::kBool).bernoulli_(0.3); }},
    {"coins_of_bytes", [](const Tensor& x) { return at::empty_like(x, at::kByte).bernoulli_(0.7); }},
    {"coins_of_chances", [](const Tensor& x) { return at::bernoulli(x); }},
    {"integers", [](const Tensor& x) { return at::empty_like(x, at::kShort).random_(-5, 600); }},
    {"integers_of_bytes", [](const Tensor& x) { return at::empty_like(x, at::kChar).random_(-100, 100); }},
    {"integers_of_int", [](const Tensor& x) { return at::empty_like(x, at::kInt).random_(); }},
    {"integers_of_half", [](const Tensor& x) { return at::empty_like(x, at::kHalf).random_(); }},
    {"integers_of_an_odd_range",
     [](const Tensor& x) { return at::empty_like(x, at::kLong).random_(-7, (int64_t{3} << 61) - 1); }},
    {"integers_all",
     [](const Tensor& x) { return at::empty_like(x, at::kLong).random_(INT64_MIN, std::optional<int64_t>()); }},
};

const std::vector<Kind> kNear = {
    {"normal_", [](const Tensor& x) { return at::empty_like(x).normal_(); }},
    {"normal_of_a_mean", [](const Tensor& x) { return at::empty_like(x).normal_(1, 2); }, 1},
    {"normal_float", [](const Tensor& x) { return at::empty_like(x, at::kFloat).normal_(); }},
    {"normal_half", [](const Tensor& x) { return at::empty_like(x, at::kHalf).normal_(); }, 1e-3},
    {"normal_bfloat16", [](const Tensor& x) { return at::empty_like(x, at::kBFloat16).normal_(); }},
    {"normal_complex", [](const Tensor& x) { return at::randn_like(x, at::kComplexDouble); }},
    {"log_normal_", [](const Tensor& x) { return at::empty_like(x).log_normal_(0, 0.5); }},
    {"exponential_", [](const Tensor& x) { return at::empty_like(x).exponential_(2); }},
    {"exponential_float", [](const Tensor& x) { return at::empty_like(x, at::kFloat).exponential_(0.5); }},
    {"cauchy_", [](const Tensor& x) { return at::empty_like(x).cauchy_(0, 2); }},
    {"cauchy_of_a_median", [](const Tensor& x) { return at::empty_like(x).cauchy_(0.5, 2); }, 1},
    {"dropout", [](const Tensor& x) { return at::dropout(x, 0.4, true); }},
};

const std::vector<Kind> kGeometric = {
    {"geometric_of_integers", [](const Tensor& x) { return at::empty_like(x, at::kInt).geometric_(0.3); }},
    {"geometric_", [](const Tensor& x) { return at::empty_like(x).geometric_(0.01); }},
    {"geometric_of_halves", [](const Tensor& x) { return at::empty_like(x, at::kFloat).geometric_(0.5); }},
};

Tensor drawn(const Kind& kind, const Tensor& like, c10::Device device) {
  manual_seed(7);
  return kind.draw(like.to(device)).cpu();
}

// Says how far two tensors are from each other, in units of the last place of their type.
struct Gap {
  double most = 0;
  int64_t differ = 0;
};

Gap gap_of(Tensor got, Tensor wanted, double zero) {
  if (wanted.is_complex()) {
    got = at::view_as_real(got);
    wanted = at::view_as_real(wanted);
  }
  const at::ScalarType type = wanted.scalar_type();
  const double unit = type == at::kDouble  ? 0x1p-52
                      : type == at::kFloat ? 0x1p-23
                      : type == at::kHalf  ? 0x1p-10
                                           : 0x1p-7;
  const Tensor right = wanted.to(at::kDouble), error = (got.to(at::kDouble) - right).abs();
  const double least = std::max(zero, 1e-290);
  const Tensor units = error / (right.abs().clamp_min(least) * unit);
  // NaN where one alone is not finite.
  return {units.nan_to_num(INFINITY).max().item<double>(), got.ne(wanted).sum().item<int64_t>()};
}

// Many enough for rare places, in a shape that is not a power of two.
const Tensor& chances() {
  static const Tensor values = make_tensor({97, 51, 43}, 1).abs();
  return values;
}

TEST_F(RandomCuda, X02_TheBitsOfTheCpu) {
  for (const Kind& kind : kExact) {
    const Tensor wanted = drawn(kind, chances(), at::kCPU), got = drawn(kind, chances(), gpu());
    EXPECT_TRUE(at::equal(got, wanted)) << kind.name << ": " << got.ne(wanted).sum().item<int64_t>() << " of "
                                        << wanted.numel() << " differ; " << difference(got, wanted, 0);
  }
}

TEST_F(RandomCuda, X02_AFewUnitsInTheLastPlace) {
  for (const Kind& kind : kNear) {
    const Tensor wanted = drawn(kind, chances(), at::kCPU), got = drawn(kind, chances(), gpu());
    ASSERT_EQ(got.scalar_type(), wanted.scalar_type()) << kind.name;
    const Gap gap = gap_of(got, wanted, kind.zero);
    const double limit = at::toRealValueType(wanted.scalar_type()) == at::kDouble ? 16 : 1.5;
    EXPECT_LE(gap.most, limit) << kind.name << " " << wanted.scalar_type() << ": " << gap.differ << " of "
                               << wanted.numel() << " differ; " << difference(got, wanted, 0);
    std::printf("%s: %.2f units at most, %lld of %lld differ\n", kind.name, gap.most,
                static_cast<long long>(gap.differ), static_cast<long long>(wanted.numel()));
  }
}

// A logarithm that is off in its last place may be on the other side of an integer.
TEST_F(RandomCuda, X02_GeometricNumbersDifferByOneAtRarePlaces) {
  for (const Kind& kind : kGeometric) {
    const Tensor wanted = drawn(kind, chances(), at::kCPU), got = drawn(kind, chances(), gpu());
    const Tensor apart = (got.to(at::kDouble) - wanted.to(at::kDouble)).abs();
    EXPECT_LE(apart.max().item<double>(), 1) << kind.name << ": " << difference(got, wanted, 0);
    EXPECT_LE(apart.gt(0).sum().item<int64_t>(), 2) << kind.name << " of " << wanted.numel();
  }
}

TEST_F(RandomCuda, X02_PermutationsAreThoseOfTheCpu) {
  for (const int64_t size : {1, 40, 100000}) {
    manual_seed(3);
    const Tensor expected = at::randperm(size);
    manual_seed(3);
    EXPECT_EQ(difference(at::randperm(size, at::device(gpu())), expected, 0), "") << size;
  }
}

struct Way {
  const char* name;
  std::function<Tensor(at::TensorOptions)> memory;
  std::function<Tensor(const Tensor&)> part;
};
const std::vector<Way> kWays = {
    {"transposed",
     [](auto o) {
       return at::zeros({9, 7, 5}, o);
     },
     [](const Tensor& t) { return t.transpose(0, 2); }},
    {"channels last",
     [](auto o) {
       return at::zeros({2, 5, 6, 7}, o.memory_format(at::MemoryFormat::ChannelsLast));
     },
     [](const Tensor& t) { return t; }},
    {"every third column",
     [](auto o) {
       return at::zeros({11, 40}, o);
     },
     [](const Tensor& t) { return t.slice(1, 1, 40, 3); }},
    {"a box",
     [](auto o) {
       return at::zeros({9, 8, 7}, o);
     },
     [](const Tensor& t) { return t.narrow(0, 1, 5).narrow(2, 3, 3); }},
    {"one number", [](auto o) { return at::zeros({}, o); }, [](const Tensor& t) { return t; }},
    {"none",
     [](auto o) {
       return at::zeros({3, 0}, o);
     },
     [](const Tensor& t) { return t; }},
    {"eight dims",
     [](auto o) {
       return at::zeros({2, 3, 2, 3, 2, 3, 2, 3}, o);
     },
     [](const Tensor& t) { return t.transpose(1, 6); }},
    {"nine dims",
     [](auto o) {
       return at::zeros({2, 3, 2, 3, 2, 3, 2, 3, 2}, o);
     },  // more than the kernel takes
     [](const Tensor& t) { return t.transpose(1, 6); }},
};

TEST_F(RandomCuda, X02_AnyStridesAndNothingBeside) {
  for (const Way& way : kWays) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kComplexFloat, at::kByte}) {
      const auto filled = [&](c10::Device device) {
        const Tensor memory = way.memory(at::device(device).dtype(type));
        manual_seed(11);
        Tensor target = way.part(memory);
        type == at::kByte ? target.random_(1, 9) : target.uniform_(1, 2);
        return memory;
      };
      EXPECT_EQ(difference(filled(gpu()), filled(at::kCPU), 0), "") << way.name << " of " << type;
    }
  }
}

Tensor drawn_on_ranks(const std::string& device, const Kind& kind) {
  Tensor result;
  std::mutex mutex;
  on_ranks(3, [&](Communicator& world) {
    manual_seed(7);
    const MeshPtr mesh = init_device_mesh(world, device, {3});
    const Tensor x = distribute_tensor(chances().narrow(0, 0, 9), mesh, {shard(0, {2, 0, 7})});
    const Tensor whole = full_tensor(kind.draw(x)).cpu();
    const std::lock_guard lock(mutex);
    result = whole;
  });
  return result;
}

TEST_F(RandomCuda, X02_BlocksOfRanksThatShareAGpu) {
  for (const Kind& kind : kExact) {
    EXPECT_EQ(difference(drawn_on_ranks(gpu().str(), kind), drawn_on_ranks("cpu", kind), 0), "") << kind.name;
  }
}

// Blocks of a tensor that no machine holds: places beyond 32 bits.
TEST_F(RandomCuda, X02_BlocksThatBeginFarOut) {
  const int64_t far = int64_t{1} << 34;
  const CommunicatorPtr world = make_fake_communicator(1, 3);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {3});
  const SpecPtr rows = make_spec(mesh, {far + 12, 6, 4}, {shard(0, {far, 5, 7})});
  const SpecPtr columns = make_spec(mesh, {9, far + 12}, {shard(1, {far, 5, 7})});
  const Distribution uniform{.kind = Distribution::kUniform, .a = 0, .b = 1, .last = 1 - 0x1p-53};
  const Distribution integer{.kind = Distribution::kInteger, .low = -3, .range = 1000003};
  for (const SpecPtr& spec : {rows, columns}) {
    for (const Distribution& distribution : {uniform, integer}) {
      const at::ScalarType type = distribution.kind == Distribution::kInteger ? at::kLong : at::kDouble;
      const auto filled = [&](c10::Device device) {
        manual_seed(13);
        const Tensor block = at::zeros(spec->local_shape(), at::device(device).dtype(type));
        ElementRandom(std::nullopt).fill(block, *spec, distribution);
        return block;
      };
      EXPECT_EQ(difference(filled(gpu()), filled(at::kCPU), 0), "") << spec->to_string() << " " << type;
    }
  }
}

// More elements than a launch has threads, in the place that the current stream has come to.
TEST_F(RandomCuda, X02_ManyNumbersOnAnotherStream) {
  manual_seed(5);
  const Tensor wanted = at::empty({3001, 1009}, at::kFloat).uniform_();
  Tensor got = at::zeros_like(wanted, at::device(gpu()));
  wait_for_gpu();
  const c10::StreamGuard beside(another_gpu_stream());
  keep_gpu_busy();
  got.fill_(9);
  manual_seed(5);
  got.uniform_();
  got.add_(1);
  EXPECT_TRUE(at::equal(got.cpu(), wanted + 1));
}

}  // namespace
}  // namespace moonhalo::testing::test_random_cuda
