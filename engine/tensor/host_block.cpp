// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/host_block.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <string>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

/// `values`, or zeros where none are given.
std::vector<int64_t> or_zeros(const std::vector<int64_t>& values, size_t count) {
  return values.empty() ? std::vector<int64_t>(count, 0) : values;
}

std::vector<int64_t> packed_strides(const std::vector<int64_t>& extent) {
  std::vector<int64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(1, extent[d]);
  return strides;
}

void check_lists(const Block& block) {
  const size_t ndim = block.extent.size();
  for (const auto& [name, values] : {std::pair{"stride", &block.stride}, std::pair{"ghost_low", &block.ghost_low},
                                     std::pair{"ghost_high", &block.ghost_high}, std::pair{"begin", &block.begin},
                                     std::pair{"global", &block.global}}) {
    TORCH_CHECK_VALUE(values->empty() || values->size() == ndim, "block: ", name, " has ", values->size(), " numbers, extent has ",
                      ndim, "\n  fix   give one for each dim, or none");
  }
}

void check_numbers(const Block& block) {
  const size_t ndim = block.extent.size();
  const auto low = or_zeros(block.ghost_low, ndim), high = or_zeros(block.ghost_high, ndim);
  const OwnedBox owned = block.box();
  const bool empty = std::find(owned.extent.begin(), owned.extent.end(), 0) != owned.extent.end();
  for (size_t d = 0; d < ndim; ++d) {
    TORCH_CHECK_VALUE(low[d] >= 0 && high[d] >= 0 && owned.extent[d] >= 0, "block: the ghosts of dim ", d,
                      " do not fit into its extent\n  have  extent ", block.extent[d], ", ghosts ", low[d], " and ", high[d],
                      "\n  fix   extent counts the ghosts too");
    // Strides are products of extents, and those of a block without elements may be 0.
    TORCH_CHECK_VALUE(block.stride.empty() || block.stride[d] > 0 || block.extent[d] <= 1 || empty, "block: stride ", block.stride[d],
                      " along dim ", d, "\n  fix   strides count elements and are positive");
  }
  TORCH_CHECK_VALUE(block.data != nullptr || empty, "block: no memory\n  have  a null pointer for a block of ",
                    shape_string(block.extent), "\n  fix   give the address of the block's first element");
}

}  // namespace

OwnedBox Block::box() const {
  const size_t ndim = extent.size();
  const auto low = or_zeros(ghost_low, ndim), high = or_zeros(ghost_high, ndim);
  OwnedBox box{or_zeros(begin, ndim), extent};
  for (size_t d = 0; d < ndim; ++d) {
    if (extent[d] != 0) box.extent[d] -= low[d] + high[d];
  }
  return box;
}

at::Tensor Block::owned() const {
  check_lists(*this);
  check_numbers(*this);
  const std::vector<int64_t> sizes = box().extent, strides = stride.empty() ? packed_strides(extent) : stride;
  const auto options = at::TensorOptions().dtype(dtype);
  if (data == nullptr || c10::multiply_integers(sizes) == 0) return at::empty(sizes, options);
  int64_t offset = 0;
  for (size_t d = 0; d < ghost_low.size(); ++d) offset += ghost_low[d] * strides[d];
  char* const first = static_cast<char*>(data) + offset * static_cast<int64_t>(c10::elementSize(dtype));
  return at::from_blob(first, sizes, strides, options);
}

at::Tensor Block::with_ghosts() const {
  return at::from_blob(data, extent, stride.empty() ? packed_strides(extent) : stride,
                       at::TensorOptions().dtype(dtype));
}

BoxGrid gather_grid(const Block& block, Communicator& group) {
  fail_together(group, [&] { block.owned(); });
  const OwnedBox mine = block.box();
  check_same_on_all_ranks(group, "block", "dtypes, numbers of dims or global extents",
                          std::string(c10::toString(block.dtype)) + ", " + std::to_string(block.extent.size()) +
                              " dims, global " + shape_string(block.global));
  const auto ndim = static_cast<int64_t>(mine.extent.size());
  at::Tensor words = at::empty({2 * ndim}, at::kLong), all = at::empty({2 * ndim * group.size()}, at::kLong);
  std::copy(mine.begin.begin(), mine.begin.end(), words.mutable_data_ptr<int64_t>());
  std::copy(mine.extent.begin(), mine.extent.end(), words.mutable_data_ptr<int64_t>() + ndim);
  group.all_gather(words, std::vector<int64_t>(group.size(), 2 * ndim), all);
  std::vector<OwnedBox> boxes;
  const int64_t* next = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < group.size(); ++rank, next += 2 * ndim) {
    boxes.push_back({{next, next + ndim}, {next + ndim, next + 2 * ndim}});
  }
  return grid_of(boxes, block.global);
}

at::Tensor as_shard_tensor(const Block& block, const SpecPtr& spec) {
  const at::Tensor owned = block.owned();
  // A block without elements may say anything of its other extents.
  return from_local(owned.numel() == 0 ? owned.new_empty(spec->local_shape()) : owned, spec);
}

at::Tensor as_shard_tensor(const Block& block, const MeshPtr& mesh) {
  return as_shard_tensor(block, gather_grid(block, mesh->group()).spec_on(mesh));
}

}  // namespace moonhalo
