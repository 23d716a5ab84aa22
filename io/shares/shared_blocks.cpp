// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/shared_blocks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/io/shares/cell_layout.h"
#include "moonhalo/io/shares/file_shares.h"

namespace moonhalo::io {
namespace {

constexpr size_t kMuch = size_t{16} << 20;  // does not stay in the caches
constexpr int64_t kShortestRun = 1 << 10;   // shorter ones are copied faster than the system reads each

/// Blocks by the numbers under which they are shared.
struct Desk {
  std::mutex mutex;
  std::map<int64_t, std::vector<at::Tensor>> blocks;
};

Desk& desk() {
  static Desk the_desk;
  return the_desk;
}

int64_t new_number() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

}  // namespace

bool SharedBlocks::possible(const Communicator& group) {
  return (group.is_fake() ? simulated_backend(group) : group.backend()) == "threads";
}

SharedBlocks::SharedMemory::SharedMemory(std::vector<at::Tensor> blocks) : number(new_number()) {
  const std::lock_guard lock(desk().mutex);
  desk().blocks[number] = std::move(blocks);
}

SharedBlocks::SharedMemory::~SharedMemory() {
  const std::lock_guard lock(desk().mutex);
  desk().blocks.erase(number);
}

SharedBlocks::SharedBlocks(Communicator& group, std::vector<at::Tensor> mine) : shared_memory_(std::move(mine)) {
  const ComputedValues facts;  // the numbers are read, of however many ranks
  at::Tensor numbers = at::empty({group.size()}, at::kLong);
  group.all_gather(at::tensor({shared_memory_.number}, at::kLong), std::vector<int64_t>(group.size(), 1), numbers);
  const std::lock_guard lock(desk().mutex);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.is_fake() && rank != group.rank()) {
      blocks_.emplace_back(desk().blocks.at(shared_memory_.number).size());
      continue;
    }
    const auto found = desk().blocks.find(numbers[rank].item<int64_t>());
    if (found == desk().blocks.end()) throw CommError("read: rank " + std::to_string(rank) + " has left");
    blocks_.push_back(found->second);
    for (const at::Tensor& block : blocks_.back()) bytes_ += block.nbytes();
  }
}

void SharedBlocks::put(size_t i, const void* data, const Box& rows,
                       const std::function<Box(int64_t rank)>& box_of) const {
  for (int64_t rank = 0; rank < static_cast<int64_t>(blocks_.size()); ++rank) {
    const at::Tensor& whole = block(rank, i);
    if (!whole.defined() || is_fake(whole)) continue;
    const Box box = box_of(rank), part = box.intersect(rows);
    if (part.empty()) continue;
    const auto size = static_cast<size_t>(whole.element_size());
    const DenseBox source{rows, size}, target{box, size};
    const StridedCopy copy = copy_between(source, target, part);
    const char* first = static_cast<const char*>(data) + source.offset(part);
    char* place = static_cast<char*>(whole.mutable_data_ptr()) + target.offset(part);
    bytes_ > kMuch ? copy.stream(first, place) : copy.copy(first, place);
  }
}

std::vector<ReadInto> SharedBlocks::places(size_t i, const std::vector<int64_t>& shape, const Box& rows,
                                           const std::function<Box(int64_t rank)>& box_of) const {
  if (count_runs(shape, rows) != 1) return {};
  int64_t size = 0;
  for (const auto& blocks : blocks_) size = blocks[i].defined() ? blocks[i].element_size() : size;
  std::vector<std::pair<int64_t, ReadInto>> found;  // by offset in the array
  int64_t bytes = 0;
  for (int64_t rank = 0; rank < static_cast<int64_t>(blocks_.size()); ++rank) {
    const Box box = box_of(rank), part = box.intersect(rows);
    if (part.empty()) continue;
    if (!block(rank, i).defined()) return {};
    Box within;  // the part as its block counts
    for (int64_t dim = 0; dim < box.ndim(); ++dim) within.push_back(part[dim].shifted(-box[dim].begin));
    auto* block_data = static_cast<char*>(block(rank, i).mutable_data_ptr());
    const size_t first = found.size();
    for_each_run(shape, part, size, [&](int64_t offset, int64_t length) {
      found.push_back({offset, {nullptr, length}});
      bytes += length;
    });
    if (bytes < kShortestRun * static_cast<int64_t>(found.size())) return {};
    // A run of the array is one of the block, or a piece of a longer one.
    size_t next = first;
    int64_t taken = 0;
    for_each_run(box.shape(), within, size, [&](int64_t offset, int64_t length) {
      for (; length > 0; ++next) {
        found[next].second.place = block_data + offset;
        taken = found[next].second.bytes;
        offset += taken;
        length -= taken;
      }
    });
  }
  if (bytes != rows.numel() * size) return {};  // some belong to several ranks
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ReadInto> parts;
  for (const auto& [offset, part] : found) parts.push_back(part);
  return parts;
}

}  // namespace moonhalo::io
