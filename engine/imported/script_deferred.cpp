// SPDX-License-Identifier: Apache-2.0
// TorchScript modules whose parameters are read later: LibTorch reads the file, but gets no bytes of large tensors.
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "moonhalo/engine/imported/model_file.h"
#include "moonhalo/engine/imported/script_program.h"

namespace moonhalo::jit {
namespace {

using imported::ModelFile;

using Reader = caffe2::serialize::PyTorchStreamReader;

// Leaves out the storages that may hold tensors of this many elements.
void leave_out_storages(const std::shared_ptr<ModelFile>& file, Reader& reader, int64_t smallest) {
  for (const std::string& name : reader.getAllRecords()) {
    if (!name.starts_with("data/")) continue;
    const auto bytes = static_cast<int64_t>(reader.getRecordSize(name));
    if (bytes < smallest) continue;
    const int64_t begin = imported::place_of_record(*file, reader, name);
    if (begin >= 0) file->leave_out({begin, bytes});
  }
}

// True if reading the file computes with its tensors, which would be with what is not read yet: where it makes objects
// by code of its own or of a C++ class, or tensors of several others.
bool computes_while_read(Reader& reader) {
  constexpr std::array<std::string_view, 4> kMarks{"def __setstate__(", "__torch__.torch.classes", "_rebuild_sparse_",
                                                   "_rebuild_qtensor"};
  for (const std::string& name : reader.getAllRecords()) {
    if (name != "data.pkl" && !(name.starts_with("code/") && name.ends_with(".py"))) continue;
    const auto [data, bytes] = reader.getRecord(name);
    const std::string_view text(static_cast<const char*>(data.get()), bytes);
    const auto is_there = [text](std::string_view mark) { return text.find(mark) != std::string_view::npos; };
    if (std::any_of(kMarks.begin(), kMarks.end(), is_there)) return true;
  }
  return false;
}

class Deferral {
 public:
  Deferral(std::shared_ptr<const ModelFile> file, int64_t smallest) : file_(std::move(file)), smallest_(smallest) {}

  void replace_slots(const torch::jit::Module& root) {
    for (const torch::jit::Module& module : root.modules()) {
      for (const TensorSlot& slot : tensor_slots(module)) {
        const at::Tensor tensor = module._ivalue()->getSlot(slot.slot).toTensor();
        const auto range = range_of(tensor);
        if (!range || tensor.numel() < smallest_) continue;
        at::Tensor& made = made_[tensor.unsafeGetTensorImpl()];
        if (!made.defined()) made = deferred(tensor, *range);
        replaced_.push_back({module._ivalue(), slot.slot, tensor});
        module._ivalue()->setSlot(slot.slot, made);
      }
    }
  }

  // A tensor that is in a list or another attribute, too, stays: the program may compute with that, as that of
  // torch.nn.LSTM does, so both must remain one.
  void put_back_shared(const torch::jit::Module& root) const {
    std::unordered_set<const void*> shared;
    c10::IValue(root._ivalue()).visit([&](const c10::IValue& value) {
      if (value.isTensor() && range_of(value.toTensor())) shared.insert(value.toTensor().storage().data());
      return false;
    });
    for (const Replaced& one : replaced_) {
      if (shared.contains(one.tensor.storage().data())) one.object->setSlot(one.slot, one.tensor);
    }
  }

  // Reads what tensors hold that are in no such slot: small ones, and those in lists and other attributes.
  void read_others(const torch::jit::Module& root) const {
    c10::IValue(root._ivalue()).visit([this](const c10::IValue& value) {
      if (!value.isTensor()) return false;
      const at::Tensor& tensor = value.toTensor();
      if (const auto range = range_of(tensor)) {
        const auto bytes = std::min(range->bytes, static_cast<int64_t>(tensor.storage().nbytes()));
        file_->read_all(range->begin, bytes, tensor.storage().mutable_data());
      }
      return false;
    });
  }

 private:
  struct Replaced {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    size_t slot;
    at::Tensor tensor;
  };

  std::optional<ModelFile::Range> range_of(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.has_storage() ? file_->left_out(tensor.storage().data()) : std::nullopt;
  }

  at::Tensor deferred(const at::Tensor& tensor, const ModelFile::Range& range) const {
    const size_t needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                                           tensor.storage_offset());
    TORCH_CHECK_VALUE(static_cast<int64_t>(needed) <= range.bytes, "a tensor needs ", needed, " bytes of a record of ",
                      range.bytes);
    const imported::StoredTensor stored{file_,
                                        tensor.scalar_type(),
                                        range.begin,
                                        tensor.storage_offset(),
                                        tensor.sizes().vec(),
                                        tensor.strides().vec()};
    return imported::deferred_tensor(stored, c10::kCPU, tensor.requires_grad());
  }

  std::shared_ptr<const ModelFile> file_;
  int64_t smallest_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> made_ = {};  // some tensors are in two slots
  std::vector<Replaced> replaced_ = {};                               // also so that memory is not used again meanwhile
};

}  // namespace

torch::jit::Module load_deferred(const std::string& path, int64_t smallest) {
  const auto file = std::make_shared<ModelFile>(path);
  Reader reader(file);
  if (computes_while_read(reader)) return torch::jit::load(file, c10::Device(c10::kCPU));
  leave_out_storages(file, reader, smallest);
  torch::jit::Module root = torch::jit::load(file, c10::Device(c10::kCPU));
  Deferral deferral(file, smallest);
  deferral.replace_slots(root);
  deferral.put_back_shared(root);
  deferral.read_others(root);
  return root;
}

}  // namespace moonhalo::jit
