// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/host_block.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

/// `values`, or zeros where none are given.
std::vector<int64_t> or_zeros(const std::vector<int64_t>& values, size_t count) {
  return values.empty() ? std::vector<int64_t>(count, 0) : values;
}

/// Nothing where one would be more than an int64_t holds.
std::optional<std::vector<int64_t>> packed_strides(const std::vector<int64_t>& extent) {
  std::vector<int64_t> strides(extent.size(), 1);
  for (size_t d = extent.size(); d-- > 1;) {
    if (__builtin_mul_overflow(strides[d], std::max<int64_t>(1, extent[d]), &strides[d - 1])) return std::nullopt;
  }
  return strides;
}

void check_lists(const Block& block) {
  const size_t ndim = block.extent.size();
  for (const auto& [name, values] : {std::pair{"stride", &block.stride}, std::pair{"ghost_low", &block.ghost_low},
                                     std::pair{"ghost_high", &block.ghost_high}, std::pair{"begin", &block.begin},
                                     std::pair{"global", &block.global}}) {
    TORCH_CHECK_VALUE(values->empty() || values->size() == ndim, "block: ", name, " has ", values->size(),
                      " numbers, extent has ", ndim, "\n  fix   give one for each dim, or none");
  }
}

/// Also of those that overflow when they are added.
void check_ghosts(const Block& block) {
  const size_t ndim = block.extent.size();
  const auto low = or_zeros(block.ghost_low, ndim), high = or_zeros(block.ghost_high, ndim);
  const auto begin = or_zeros(block.begin, ndim);
  for (size_t d = 0; d < ndim; ++d) {
    const int64_t extent = block.extent[d];
    TORCH_CHECK_VALUE(low[d] >= 0 && high[d] >= 0 && extent >= 0 && (extent == 0 || low[d] <= extent) &&
                          (extent == 0 || high[d] <= extent - low[d]),
                      "block: the ghosts of dim ", d, " do not fit into its extent\n  have  extent ", extent,
                      ", ghosts ", low[d], " and ", high[d], "\n  fix   extent counts the ghosts too");
    int64_t end = 0;
    TORCH_CHECK_VALUE(!__builtin_add_overflow(begin[d], extent, &end), "block: dim ", d,
                      " ends beyond all numbers\n  have  begin ", begin[d], ", extent ", extent,
                      "\n  fix   set all numbers of the block: some are not initialised");
  }
}

/// Elements share no memory, and all have valid addresses: sorted by their strides, each dim steps over all that
/// the dims before it span. For blocks with elements.
void check_memory(const Block& block) {
  const auto packed = packed_strides(block.extent);
  const bool known = !block.stride.empty() || packed.has_value();
  const auto& stride = block.stride.empty() ? packed.value_or(block.extent) : block.stride;
  std::vector<size_t> dims;
  for (size_t d = 0; d < block.extent.size(); ++d) {
    if (block.extent[d] > 1) dims.push_back(d);
  }
  std::stable_sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return stride[a] < stride[b]; });
  const auto item = static_cast<int64_t>(c10::elementSize(block.dtype));
  int64_t span = 1, bytes = item;
  uintptr_t end = 0;
  bool fits = known;
  for (const size_t d : dims) {
    TORCH_CHECK_VALUE(!fits || stride[d] >= span, "block: elements share memory\n  have  extents ",
                      shape_string(block.extent), " with strides ", shape_string(stride), ": stride ", stride[d],
                      " along dim ", d, " of ", span,
                      " elements that faster dims reach over\n  fix   strides count elements, not bytes; 0 for all of "
                      "them means packed");
    int64_t longer = 0;
    fits = fits && !__builtin_mul_overflow(block.extent[d] - 1, stride[d], &longer) &&
           !__builtin_add_overflow(span, longer, &span);
  }
  fits = fits && !__builtin_mul_overflow(span, item, &bytes) &&
         !__builtin_add_overflow(reinterpret_cast<uintptr_t>(block.data), static_cast<uintptr_t>(bytes), &end);
  TORCH_CHECK_VALUE(fits, "block: its memory would reach beyond all addresses\n  have  extents ",
                    shape_string(block.extent), "\n  fix   set all numbers of the block: some are not initialised");
  const auto unit = static_cast<uintptr_t>(c10::elementSize(c10::toRealValueType(block.dtype)));
  TORCH_CHECK_VALUE(reinterpret_cast<uintptr_t>(block.data) % unit == 0, "block: its address is not a multiple of ",
                    unit, " bytes\n  have  address ", block.data, " for elements of ", block.dtype,
                    "\n  fix   give the address of the array's first element, and the dtype that the array has");
}

void check_numbers(const Block& block) {
  check_ghosts(block);
  const size_t ndim = block.extent.size();
  const OwnedBox owned = block.box();
  const bool empty = std::find(owned.extent.begin(), owned.extent.end(), 0) != owned.extent.end();
  for (size_t d = 0; d < ndim; ++d) {
    // Strides are products of extents, and those of a block without elements may be 0.
    TORCH_CHECK_VALUE(block.stride.empty() || block.stride[d] > 0 || block.extent[d] <= 1 || empty, "block: stride ",
                      block.stride[d], " along dim ", d, "\n  fix   strides count elements and are positive");
  }
  TORCH_CHECK_VALUE(block.data != nullptr || empty, "block: no memory\n  have  a null pointer for a block of ",
                    shape_string(block.extent), "\n  fix   give the address of the block's first element");
  if (!empty) check_memory(block);
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
  const std::vector<int64_t> sizes = box().extent;
  const auto options = at::TensorOptions().dtype(dtype);
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return at::empty(sizes, options);
  const std::vector<int64_t> strides = stride.empty() ? *packed_strides(extent) : stride;
  int64_t offset = 0;
  for (size_t d = 0; d < ghost_low.size(); ++d) offset += ghost_low[d] * strides[d];
  char* const first = static_cast<char*>(data) + offset * static_cast<int64_t>(c10::elementSize(dtype));
  return at::from_blob(first, sizes, strides, options);
}

at::Tensor Block::with_ghosts() const {
  return at::from_blob(data, extent, stride.empty() ? *packed_strides(extent) : stride,
                       at::TensorOptions().dtype(dtype));
}

BoxGrid gather_grid(const Block& block, Communicator& group) {
  const TrafficScope moving(Traffic::kDistribute);
  fail_together(group, [&] { block.owned(); });
  const OwnedBox mine = block.box();
  check_same_on_all_ranks(group, "block", "dtypes, numbers of dims or global extents",
                          std::string(c10::toString(block.dtype)) + ", " + std::to_string(block.extent.size()) +
                              " dims, global " + shape_string(block.global));
  const auto ndim = static_cast<int64_t>(mine.extent.size());
  at::Tensor words = at::empty({2 * ndim}, at::kLong);
  std::copy(mine.begin.begin(), mine.begin.end(), words.mutable_data_ptr<int64_t>());
  std::copy(mine.extent.begin(), mine.extent.end(), words.mutable_data_ptr<int64_t>() + ndim);
  const at::Tensor all = group.facts_of_all(words);
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
