// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/lent_blocks.h"

#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string_view>

namespace moonhalo::io {
namespace {

/// Blocks by the numbers under which they are lent.
struct Desk {
  std::mutex mutex;
  std::map<int64_t, at::Tensor> blocks;
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

LentBlocks::Loan::Loan(const at::Tensor& block) : number(new_number()) {
  const std::lock_guard lock(desk().mutex);
  desk().blocks[number] = block;
}

LentBlocks::Loan::~Loan() {
  const std::lock_guard lock(desk().mutex);
  desk().blocks.erase(number);
}

LentBlocks::LentBlocks(Communicator& group, const at::Tensor& mine) : loan_(mine) {
  at::Tensor numbers = at::empty({group.size()}, at::kLong);
  group.all_gather(at::tensor({loan_.number}, at::kLong), std::vector<int64_t>(group.size(), 1), numbers);
  const std::lock_guard lock(desk().mutex);
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto found = desk().blocks.find(numbers[rank].item<int64_t>());
    if (found == desk().blocks.end()) throw CommError("scatter_tensor: rank " + std::to_string(rank) + " has left");
    blocks_.push_back(found->second);
  }
}

}  // namespace moonhalo::io
