// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/imported/model_file.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "moonhalo/engine/deferred/deferred_read.h"

namespace moonhalo::imported {
namespace {

struct Dim {
  int64_t size, stride;
};

// True if the elements of these dims follow each other in the file as in a row-major tensor.
bool is_dense(at::ArrayRef<Dim> dims) {
  int64_t expected = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i].size != 1 && dims[i].stride != expected) return false;
    expected *= dims[i].size;
  }
  return true;
}

// Reads the elements from `first` on along `dims`, which are in the order of their strides, as the target's dims are.
void read_dims(const StoredTensor& stored, at::ArrayRef<Dim> dims, int64_t first, const at::Tensor& target) {
  const bool dense = is_dense(dims);
  if (!dense && dims.size() > 1) {
    for (int64_t i = 0; i < dims[0].size; ++i)
      read_dims(stored, dims.slice(1), first + i * dims[0].stride, target.select(0, i));
    return;
  }
  const auto width = static_cast<int64_t>(c10::elementSize(stored.dtype));
  int64_t span = 1;
  std::vector<int64_t> sizes, strides;
  for (const Dim& dim : dims) {
    span += (dim.size - 1) * dim.stride;
    sizes.push_back(dim.size);
    strides.push_back(dim.stride);
  }
  const bool in_place = dense && target.is_contiguous();
  const at::Tensor run = in_place ? target : at::empty({span}, target.options());
  stored.file->read_all(stored.begin + first * width, span * width, run.mutable_data_ptr());
  if (!in_place) target.copy_(run.as_strided(sizes, strides));
}

}  // namespace

ModelFile::ModelFile(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  TORCH_CHECK_VALUE(descriptor_ >= 0, "'", path, "' cannot be opened: ", std::strerror(errno));
  struct stat facts = {};
  if (fstat(descriptor_, &facts) == 0) size_ = static_cast<size_t>(facts.st_size);
}

ModelFile::~ModelFile() { ::close(descriptor_); }

size_t ModelFile::read(uint64_t begin, void* target, size_t bytes, const char* /*what*/) const {
  const auto range = ranges_.find(static_cast<int64_t>(begin));
  if (range != ranges_.end() && range->second == static_cast<int64_t>(bytes)) {
    places_[target] = {range->first, range->second};
    return bytes;
  }
  places_.erase(target);
  return read_from(begin, bytes, target);
}

size_t ModelFile::read_from(uint64_t begin, size_t bytes, void* target) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got =
        pread(descriptor_, static_cast<char*>(target) + done, bytes - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

void ModelFile::read_all(int64_t begin, int64_t bytes, void* target) const {
  const size_t done = read_from(static_cast<uint64_t>(begin), static_cast<size_t>(bytes), target);
  TORCH_CHECK_VALUE(done == static_cast<size_t>(bytes), "'", path_, "' cannot be read\n  have  ", done, " of ", bytes,
                    " bytes at ", begin, "\n  fix   leave the file as it is until all tensors have their values");
}

std::optional<ModelFile::Range> ModelFile::left_out(const void* target) const {
  const auto found = places_.find(target);
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

int64_t place_of_record(const ModelFile& file, caffe2::serialize::PyTorchStreamReader& reader,
                        const std::string& name) {
  constexpr int64_t kMethod = 8;  // where a zip file's header of an entry says how it is compressed
  uint16_t method = 0;
  file.read_all(static_cast<int64_t>(reader.getRecordHeaderOffset(name)) + kMethod, sizeof method, &method);
  return method == 0 ? static_cast<int64_t>(reader.getRecordOffset(name)) : -1;
}

at::Tensor read_box(const StoredTensor& stored, const Box& box) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor block = at::empty(box.shape(), at::TensorOptions(stored.dtype));
  if (block.numel() == 0) return block;
  std::vector<int64_t> order(stored.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return stored.strides[a] > stored.strides[b]; });
  std::vector<Dim> dims;
  int64_t first = stored.offset;
  for (const int64_t dim : order) {
    dims.push_back({box[dim].size(), stored.strides[dim]});
    first += box[dim].begin * stored.strides[dim];
  }
  read_dims(stored, dims, first, block.permute(order));
  return block;
}

at::Tensor deferred_tensor(const StoredTensor& stored, c10::Device device, bool requires_grad) {
  const auto read = [stored](const Box& box) { return read_box(stored, box); };
  const auto options = at::TensorOptions(stored.dtype).device(device);
  return deferred_read(stored.sizes, options, read).requires_grad_(requires_grad);
}

}  // namespace moonhalo::imported
