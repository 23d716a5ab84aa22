// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/lent_blocks.h"

#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "moonhalo/io/shares/cell_layout.h"

namespace moonhalo::io {
namespace {

constexpr size_t kMuch = size_t{16} << 20;  // does not stay in the caches

/// Blocks by the numbers under which they are lent.
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

bool LentBlocks::possible(const Communicator& group) { return group.backend() == std::string_view("threads"); }

LentBlocks::Loan::Loan(std::vector<at::Tensor> blocks) : number(new_number()) {
  const std::lock_guard lock(desk().mutex);
  desk().blocks[number] = std::move(blocks);
}

LentBlocks::Loan::~Loan() {
  const std::lock_guard lock(desk().mutex);
  desk().blocks.erase(number);
}

LentBlocks::LentBlocks(Communicator& group, std::vector<at::Tensor> mine) : loan_(std::move(mine)) {
  at::Tensor numbers = at::empty({group.size()}, at::kLong);
  group.all_gather(at::tensor({loan_.number}, at::kLong), std::vector<int64_t>(group.size(), 1), numbers);
  const std::lock_guard lock(desk().mutex);
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto found = desk().blocks.find(numbers[rank].item<int64_t>());
    if (found == desk().blocks.end()) throw CommError("read: rank " + std::to_string(rank) + " has left");
    blocks_.push_back(found->second);
    for (const at::Tensor& block : blocks_.back()) bytes_ += block.nbytes();
  }
}

void LentBlocks::put(size_t i, const void* data, const Box& rows,
                     const std::function<Box(int64_t rank)>& box_of) const {
  for (int64_t rank = 0; rank < static_cast<int64_t>(blocks_.size()); ++rank) {
    const Box box = box_of(rank), part = box.intersect(rows);
    if (part.empty()) continue;
    const at::Tensor& whole = block(rank, i);
    const auto size = static_cast<size_t>(whole.element_size());
    const DenseBox source{rows, size}, target{box, size};
    const StridedCopy copy = copy_between(source, target, part);
    const char* first = static_cast<const char*>(data) + source.offset(part);
    char* place = static_cast<char*>(whole.mutable_data_ptr()) + target.offset(part);
    bytes_ > kMuch ? copy.stream(first, place) : copy.copy(first, place);
  }
}

}  // namespace moonhalo::io
