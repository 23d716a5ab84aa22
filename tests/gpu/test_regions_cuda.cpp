// SPDX-License-Identifier: Apache-2.0
// Regions copied and added by one launch on a GPU, against a loop of LibTorch's operators on the CPU: the same bits.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "moonhalo/engine/exchange/regions.h"
#include "tests/gpu/gpu.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_regions_cuda {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

// Elements of 1, 2, 4, 8 and 16 bytes.
const at::ScalarType kTypes[] = {at::kBool, at::kChar,   at::kHalf,         at::kBFloat16,      at::kShort, at::kFloat,
                                 at::kInt,  at::kDouble, at::kComplexFloat, at::kComplexDouble, at::kLong};
const at::ScalarType kSummed[] = {at::kDouble,   at::kFloat,        at::kHalf,
                                  at::kBFloat16, at::kComplexFloat, at::kComplexDouble};

Tensor part(const Tensor& tensor, at::IntArrayRef begin, at::IntArrayRef length) {
  Tensor view = tensor;
  for (int64_t d = 0; d < tensor.dim(); ++d) view = view.narrow(d, begin[d], length[d]);
  return view;
}

// The same values on the GPU, from the second element of a memory on.
Tensor there(const Tensor& tensor) {
  const Tensor memory = at::zeros({tensor.numel() + 1}, tensor.options().device(gpu()));
  const Tensor moved = memory.narrow(0, 1, tensor.numel()).view(tensor.sizes());
  return moved.copy_(tensor);
}

class RegionsCuda : public OnGpu<> {
 protected:
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }
  // A box in `shape`, perhaps an empty one.
  std::pair<Sizes, Sizes> box_in(at::IntArrayRef shape) {
    Sizes begin, length;
    for (const int64_t extent : shape) {
      begin.push_back(below(extent));
      length.push_back(below(extent - begin.back() + 1));
    }
    return {begin, length};
  }
  Tensor numbers(at::IntArrayRef shape, at::ScalarType type) {
    const Tensor values = make_tensor(shape, below(1000)) * 100;
    return at::isComplexType(type) ? at::complex(values, values + 1).to(type) : values.to(type);
  }
  void expect_copies(at::ScalarType type, int64_t dims, int64_t regions);
  void expect_sums(at::ScalarType type, int64_t dims, int regions);

  std::mt19937 random_{5};
};

// Each region is a slab of the first dim, a box in the others, from another place and of other strides.
void RegionsCuda::expect_copies(at::ScalarType type, int64_t dims, int64_t regions) {
  Sizes shape(dims, dims > 4 ? 2 : 5);
  if (dims > 0) shape[0] = regions;
  const Tensor host = numbers(shape, type), source = there(host);
  const Tensor expected = numbers(shape, type), got = there(expected);
  std::vector<RegionCopy> copies;
  for (int64_t row = 0; row < (dims == 0 ? 1 : regions); ++row) {
    auto [begin, length] = box_in(shape);
    Sizes from = begin;
    if (dims > 0) {
      begin[0] = row;
      from[0] = below(regions);
      length[0] = 1;
    }
    const Tensor values = part(source, from, length);
    const bool turned = dims > 1 && below(2) == 0;
    copies.push_back({turned ? values.transpose(0, dims - 1).contiguous().transpose(0, dims - 1) : values,
                      part(got, begin, length)});
    part(expected, begin, length).copy_(part(host, from, length));
  }
  copy_regions(copies);
  EXPECT_EQ(difference(got, expected, 0), "") << regions << " regions of " << type << " in " << dims << " dims";
}

TEST_F(RegionsCuda, S16_CopiesAreThoseOfALoop) {
  copy_regions({});
  for (const at::ScalarType type : kTypes) {
    for (int64_t dims = 0; dims <= 7; ++dims) {  // one more than the kernels take
      for (const int64_t regions : {1, 2, 26, 33}) expect_copies(type, dims, regions);
    }
  }
}

// Also where regions overlap, in the order that they are given in: sums in half types show it.
void RegionsCuda::expect_sums(at::ScalarType type, int64_t dims, int regions) {
  const Sizes shape = Sizes{3, 6, 5, 2, 3, 2, 2};
  const at::IntArrayRef some(shape.data(), dims);
  const Tensor expected = numbers(some, type), got = there(expected);
  std::vector<RegionSum> here, moved;
  for (int r = 0; r < regions; ++r) {
    const auto [begin, length] = box_in(some);
    here.push_back({begin, numbers(length, type)});
    moved.push_back({begin, there(here.back().part)});
  }
  add_regions(expected, here);
  add_regions(got, moved);
  EXPECT_EQ(difference(got, expected, 0), "") << regions << " regions of " << type << " in " << dims << " dims";
}

TEST_F(RegionsCuda, S16_SumsAreThoseOfALoopInOrder) {
  for (const at::ScalarType type : kSummed) {
    for (int64_t dims = 1; dims <= 7; ++dims) {
      for (const int regions : {0, 1, 7, 26, 40}) expect_sums(type, dims, regions);
    }
  }
  expect_sums(at::kLong, 3, 7);  // by LibTorch's operators
}

// All that a block in three dims sends its 26 neighbours, packed, unpacked into a halo, and added back.
TEST_F(RegionsCuda, S16_TheNeighboursOfABlock) {
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    const Tensor block = numbers({2, 3, 6, 7, 8}, type), block_there = there(block);
    const Tensor halo = at::zeros({2, 3, 10, 11, 12}, type), halo_there = there(halo);
    const Tensor sum = block.clone(), sum_there = there(sum);
    std::vector<RegionCopy> packed, unpacked;
    std::vector<RegionSum> back, back_there;
    for (int64_t way = 0; way < 27; ++way) {
      const Sizes turn = {way / 9, way / 3 % 3, way % 3};
      if (turn == Sizes{1, 1, 1}) continue;
      Sizes begin = {0, 0}, length = {2, 3}, to = {0, 0};
      for (int64_t d = 0; d < 3; ++d) {
        const int64_t extent = block.size(d + 2);
        begin.push_back(turn[d] == 2 ? extent - 2 : 0);
        length.push_back(turn[d] == 1 ? extent : 2);
        to.push_back(turn[d] == 0 ? 0 : turn[d] == 1 ? 2 : extent + 2);
      }
      const Tensor buffer = at::full(length, 9, block_there.options());
      packed.push_back({part(block_there, begin, length), buffer});
      unpacked.push_back({buffer, part(halo_there, to, length)});
      back_there.push_back({begin, buffer});
      back.push_back({begin, part(block, begin, length).clone()});
      part(halo, to, length).copy_(part(block, begin, length));
    }
    ASSERT_EQ(packed.size(), 26U);
    copy_regions(packed);
    copy_regions(unpacked);
    add_regions(sum_there, back_there);
    add_regions(sum, back);
    EXPECT_EQ(difference(halo_there, halo, 0), "") << type;
    EXPECT_EQ(difference(sum_there, sum, 0), "") << type;
  }
}

// More elements than a launch has threads, so that each of them takes several.
TEST_F(RegionsCuda, S16_MoreElementsThanThreads) {
  const Tensor whole = at::arange(3 * 1100 * 1300, at::kFloat).remainder(251).view({3, 1100, 1300});
  for (const at::ScalarType type : {at::kByte, at::kFloat, at::kComplexDouble}) {
    const Tensor source = whole.to(type).to(gpu()), to = at::zeros({3, 1300, 1100}, source.options());
    copy_regions({{source[0].t(), to[2]}, {source[1].t(), to[0]}, {source[2].t(), to[1]}});
    const Tensor expected = at::stack({whole[1].t(), whole[2].t(), whole[0].t()}).to(type);
    EXPECT_TRUE(at::equal(to.cpu(), expected)) << type;
  }
  const Tensor sum = whole[0].clone(), sum_there = sum.to(gpu());
  const std::vector<RegionSum> parts = {{{0, 0}, whole[1]},
                                        {{100, 200}, whole[2].narrow(0, 0, 1000).narrow(1, 0, 1100)}};
  add_regions(sum, parts);
  add_regions(sum_there, {{{0, 0}, parts[0].part.to(gpu())}, {{100, 200}, parts[1].part.to(gpu())}});
  EXPECT_TRUE(at::equal(sum_there.cpu(), sum));
}

// Numbers that a mark alone conjugates are written out first, for each region in memory of its own.
TEST_F(RegionsCuda, S16_ConjugatedNumbersAreWrittenOut) {
  const Tensor host = numbers({4, 5}, at::kComplexDouble), conjugated = host.conj().resolve_conj();
  const Tensor source = there(host), got = at::zeros_like(source), sum = at::zeros_like(source);
  const auto row = [](const Tensor& t, int64_t i) { return t.narrow(0, i, 1); };
  std::vector<RegionCopy> copies;
  std::vector<RegionSum> sums;
  for (int64_t i = 0; i < 4; ++i) {
    copies.push_back({row(source, i).conj(), row(got, i)});
    sums.push_back({{i, 0}, row(source, i).conj()});
  }
  copy_regions(copies);
  add_regions(sum, sums);
  EXPECT_EQ(difference(got, conjugated, 0), "") << "copies";
  EXPECT_EQ(difference(sum, conjugated, 0), "") << "sums";
}

// Launches take their place in the current stream, whichever that is.
TEST_F(RegionsCuda, S16_OnTheCurrentStream) {
  for (const bool beside : {false, true}) {
    const Tensor from = at::zeros({40, 50}, gpu()), to = at::zeros({40, 50}, gpu()), sum = at::zeros({40, 50}, gpu());
    wait_for_gpu();
    const c10::StreamGuard guard(beside ? another_gpu_stream() : current_gpu_stream());
    keep_gpu_busy();
    from.fill_(3);
    copy_regions({{from.narrow(0, 0, 20), to.narrow(0, 20, 20)}, {from.narrow(0, 20, 20), to.narrow(0, 0, 20)}});
    add_regions(sum, {{{0, 0}, to}, {{0, 0}, to}});
    const Tensor result = sum + 1;
    EXPECT_EQ(difference(to, at::full({40, 50}, 3.0), 0), "") << (beside ? "another stream" : "the default stream");
    EXPECT_EQ(difference(result, at::full({40, 50}, 7.0), 0), "") << (beside ? "another stream" : "the default stream");
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_regions_cuda
