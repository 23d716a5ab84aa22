// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/pipeline/tensor_link.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

// Words in the first message, which is all that lists of a few tensors need. The first of them is the number of all.
constexpr int64_t kHeaderWords = 128;
constexpr int64_t kFailed = -1;  // in place of the number of tensors
enum Kind : int64_t { kUndefined, kPlain, kSharded };

class WordReader {
 public:
  explicit WordReader(const std::vector<int64_t>& words) : words_(words) {}
  int64_t next() { return words_.at(next_++); }
  std::vector<int64_t> list() {
    std::vector<int64_t> values(next());
    for (int64_t& value : values) value = next();
    return values;
  }

 private:
  const std::vector<int64_t>& words_;
  size_t next_ = 0;
};

void append(std::vector<int64_t>& words, at::IntArrayRef list) {
  words.push_back(static_cast<int64_t>(list.size()));
  words.insert(words.end(), list.begin(), list.end());
}

at::Tensor sendable_block(const at::Tensor& tensor) {
  at::Tensor block = tensor.detach();
  if (is_shard_tensor(block)) block = to_local(block);
  TORCH_CHECK_NOT_IMPLEMENTED(block.layout() == at::kStrided, "pipeline: a ", block.layout(),
                              " tensor between stages\n  have  shape ", block.sizes(),
                              "\n  fix   give to_dense() to the next stage");
  return block.resolve_conj().resolve_neg().contiguous();
}

at::Tensor header_of(const std::vector<int64_t>& words) {
  at::Tensor header = at::zeros({kHeaderWords}, at::kLong);
  auto* data = header.mutable_data_ptr<int64_t>();
  data[0] = static_cast<int64_t>(words.size());
  std::copy_n(words.begin(), std::min<int64_t>(data[0], kHeaderWords - 1), data + 1);
  return header;
}

// The words that found no place in the header, empty if none.
at::Tensor rest_of(const std::vector<int64_t>& words) {
  const int64_t count = std::max<int64_t>(0, static_cast<int64_t>(words.size()) - (kHeaderWords - 1));
  at::Tensor rest = at::empty({count}, at::kLong);
  std::copy_n(words.end() - count, count, rest.mutable_data_ptr<int64_t>());
  return rest;
}

/// `receive` fills a tensor with what comes next.
template <typename Receive>
std::vector<int64_t> receive_words(const Receive& receive) {
  at::Tensor header = at::empty({kHeaderWords}, at::kLong);
  receive(header);
  const auto* data = header.const_data_ptr<int64_t>();
  const int64_t count = data[0], first = std::min(count, kHeaderWords - 1);
  std::vector<int64_t> words(data + 1, data + 1 + first);
  if (first == count) return words;
  at::Tensor rest = at::empty({count - first}, at::kLong);
  receive(rest);
  words.insert(words.end(), rest.const_data_ptr<int64_t>(), rest.const_data_ptr<int64_t>() + rest.numel());
  return words;
}

}  // namespace

TensorList::TensorList(const std::vector<at::Tensor>& tensors) {
  const c10::AutoGradMode no_grad(false);
  words_.push_back(static_cast<int64_t>(tensors.size()));
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      words_.push_back(kUndefined);
      continue;
    }
    const bool sharded = is_shard_tensor(tensor);
    words_.insert(words_.end(), {sharded ? kSharded : kPlain, static_cast<int64_t>(tensor.scalar_type()),
                                 static_cast<int64_t>(tensor.device().type()), tensor.requires_grad() ? 1 : 0});
    append(words_, tensor.sizes());
    if (sharded) {
      TORCH_INTERNAL_ASSERT(!spec(tensor)->has_partial());
      for (const Cut& cut : spec(tensor)->layout().cuts) {
        append(words_, cut.mesh_dims);
        append(words_, cut.sizes);
      }
    }
    blocks_.push_back(sendable_block(tensor));
  }
}

TensorList TensorList::failed() {
  TensorList list;
  list.failed_ = true;
  list.words_ = {kFailed};
  return list;
}

TensorList::TensorList(const std::vector<int64_t>& words, const MeshPtr& mesh) : words_(words) {
  WordReader reader(words_);
  const int64_t count = reader.next();
  failed_ = count == kFailed;
  if (failed_) return;
  entries_.resize(count);
  for (Entry& entry : entries_) {
    const int64_t kind = reader.next();
    if (kind == kUndefined) continue;
    const auto dtype = static_cast<at::ScalarType>(reader.next());
    const auto device = static_cast<at::DeviceType>(reader.next());
    entry.defined = true;
    entry.requires_grad = reader.next() != 0;
    std::vector<int64_t> shape = reader.list();
    if (kind == kSharded) {
      Layout layout(mesh, shape);
      for (Cut& cut : layout.cuts) {
        cut.mesh_dims = reader.list();
        cut.sizes = reader.list();
      }
      entry.spec = intern(std::move(layout));
      shape = entry.spec->local_shape();
    }
    blocks_.push_back(at::empty(shape, at::TensorOptions(device).dtype(dtype)));
  }
}

std::vector<at::Tensor> TensorList::tensors(uint64_t origin) const {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> result;
  size_t next = 0;
  for (const Entry& entry : entries_) {
    at::Tensor& tensor = result.emplace_back();
    if (!entry.defined) continue;
    tensor = blocks_[next++];
    if (entry.spec) {
      tensor = from_local(tensor, entry.spec);
      set_new_origin(tensor, origin);
    }
    if (entry.requires_grad) tensor.requires_grad_();
  }
  return result;
}

void TensorLink::send(const TensorList& list, const std::string& what) {
  wait_for_capacity(capacity_ - 1);
  const auto describe = [&what] { return what; };
  const CallScope scope(fingerprint_of(what), "pipeline", describe);
  const TrafficScope moving(Traffic::kStages);
  under_way_.emplace_back();
  const auto post = [this](std::vector<Message> messages) {
    under_way_.back().push_back(pair_->exchange_async(std::move(messages), {}));
  };
  post({{peer_, header_of(list.words())}});
  if (const at::Tensor rest = rest_of(list.words()); rest.numel() > 0) post({{peer_, rest}});
  std::vector<Message> messages;
  for (const at::Tensor& block : list.blocks()) messages.push_back({peer_, block});
  post(std::move(messages));
}

std::optional<std::vector<at::Tensor>> TensorLink::receive(const MeshPtr& mesh, const std::string& what) {
  const auto describe = [&what] { return what; };
  const CallScope scope(fingerprint_of(what), "pipeline", describe);
  const TrafficScope moving(Traffic::kStages);
  TensorList list(receive_words([this](const at::Tensor& data) { pair_->exchange({}, {{peer_, data}}); }), mesh);
  std::vector<Message> messages;
  for (const at::Tensor& block : list.blocks()) messages.push_back({peer_, block});
  pair_->exchange({}, std::move(messages));
  if (list.has_failed()) return std::nullopt;
  return list.tensors(scope.tag());
}

std::vector<at::Tensor> TensorLink::receive_zeros(const std::vector<int64_t>& words, const MeshPtr& mesh,
                                                  const std::string& what) {
  const auto describe = [&what] { return what; };
  const CallScope scope(fingerprint_of(what), "pipeline", describe);
  const TrafficScope moving(Traffic::kStages);
  pair_->exchange({}, {{peer_, header_of(words)}});
  if (const at::Tensor rest = rest_of(words); rest.numel() > 0) pair_->exchange({}, {{peer_, rest}});
  const TensorList list(words, mesh);
  std::vector<Message> messages;
  for (const at::Tensor& block : list.blocks()) messages.push_back({peer_, block});
  pair_->exchange({}, std::move(messages));
  return list.tensors(scope.tag());
}

void TensorLink::wait_for_capacity(size_t most_under_way) {
  for (; under_way_.size() > most_under_way; under_way_.pop_front()) {
    for (const WorkPtr& work : under_way_.front()) work->wait();
  }
}

void TensorLink::finish() { wait_for_capacity(0); }

// Waiting would be for a rank that waits for this one; what was sent keeps its own memory.
void TensorLink::abandon() {
  for (std::vector<WorkPtr>& list : under_way_) {
    for (WorkPtr& work : list) static_cast<void>(work.release());
  }
  under_way_.clear();
}

std::vector<at::Tensor> broadcast_tensors(Communicator& group, int root, const std::vector<at::Tensor>& tensors,
                                          const MeshPtr& mesh) {
  if (group.size() == 1) return tensors;
  const TrafficScope moving(Traffic::kStages);
  const auto broadcast = [&](at::Tensor& data) { group.broadcast(data, root); };
  if (group.rank() != root && !group.is_fake()) {
    TensorList list(receive_words(broadcast), mesh);
    for (at::Tensor& block : list.blocks()) broadcast(block);
    return list.tensors(kFirstFingerprint);
  }
  TensorList list(tensors);
  at::Tensor header = header_of(list.words()), rest = rest_of(list.words());
  broadcast(header);
  if (rest.numel() > 0) broadcast(rest);
  for (at::Tensor& block : list.blocks()) broadcast(block);
  return tensors;
}

}  // namespace moonhalo
