// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/view_copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"

namespace moonhalo {
namespace {

// Storages that were copied from, as long as a copy lives (which holds its original: no address comes back meanwhile).
// One for the process, not for each thread: backward may run in another one.
struct Watched {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<WriteCount>> counts;
};
constinit std::atomic<int64_t> storages_watched = 0;  // beside them: asked before every write
Watched& watched() {
  static auto* all = new Watched;  // never destroyed: tensors may outlive the statics
  return *all;
}

}  // namespace

class WriteCount {
 public:
  explicit WriteCount(const c10::StorageImpl* storage) : storage_(storage) {}
  ~WriteCount() {
    Watched& all = watched();
    const std::lock_guard lock(all.mutex);
    const auto found = all.counts.find(storage_);
    if (found != all.counts.end() && found->second.expired()) all.counts.erase(found);
    storages_watched = static_cast<int64_t>(all.counts.size());
  }
  std::atomic<uint64_t> writes = 0;

 private:
  const c10::StorageImpl* storage_;
};

std::shared_ptr<const WriteCount> count_writes(const at::Tensor& block) {
  const c10::StorageImpl* storage = block.storage().unsafeGetStorageImpl();
  Watched& all = watched();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<WriteCount>& known = all.counts[storage];
  std::shared_ptr<WriteCount> count = known.lock();
  if (!count) known = count = std::make_shared<WriteCount>(storage);
  storages_watched = static_cast<int64_t>(all.counts.size());
  return count;
}

uint64_t writes_so_far(const WriteCount& count) { return count.writes; }

bool writes_are_counted() { return storages_watched.load(std::memory_order_relaxed) > 0; }

void block_was_written(const at::Tensor& block) {
  if (!writes_are_counted() || !block.has_storage()) return;
  Watched& all = watched();
  std::shared_ptr<WriteCount> count;  // let go of after the lock
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.counts.find(block.storage().unsafeGetStorageImpl());
    if (found != all.counts.end()) count = found->second.lock();
  }
  if (count) ++count->writes;
}

CopiedMemory::CopiedMemory(at::Tensor original, at::Tensor copy, Read read, Write write,
                           std::shared_ptr<CopiedMemory> source)
    : original_(std::move(original)),
      copy_(std::move(copy)),
      read_(std::move(read)),
      write_(std::move(write)),
      source_(std::move(source)),
      count_(count_writes(original_)),
      seen_(count_->writes) {}

void CopiedMemory::refresh(const ShardTensorImpl& reader, const std::string& op) {
  if (source_) source_->refresh(reader, op);
  if (count_->writes == seen_) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      read_, op, ": this view of a ShardTensor had to be copied, and what it was made from has been ",
      "written in place since\n  have  ", reader.spec()->to_string(), "\n  fix   make the view again after writing");
  const TrafficScope moving(Traffic::kInputs);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  copy_.copy_(read_(original_));
  block_was_written(copy_);
  seen_ = count_->writes;
}

void CopiedMemory::check_writable(const ShardTensorImpl& writer, const std::string& op) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      write_, op, ": this view of a ShardTensor had to be copied, so writing to it in place would be lost",
      "\n  have  ", writer.spec()->to_string(), "\n  fix   clone() it first, or write to the tensor it was made from");
  if (source_) source_->check_writable(writer, op);
}

void CopiedMemory::write_through() {
  const TrafficScope moving(Traffic::kInputs);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  write_(copy_, original_);
  block_was_written(original_);
  seen_ = count_->writes;
  if (source_) source_->write_through();
}

const std::shared_ptr<CopiedMemory>& copied_memory(ShardTensorImpl& impl) {
  static const std::shared_ptr<CopiedMemory> kNone;
  const ShardTensorMeta* notes = notes_of(impl);
  return notes != nullptr ? notes->copied : kNone;
}

const at::Tensor& fresh_block(const at::Tensor& tensor, const char* op) {
  ShardTensorImpl& impl = *shard_impl(tensor);
  if (const auto& copied = copied_memory(impl)) copied->refresh(impl, op);
  return impl.local();
}

}  // namespace moonhalo
