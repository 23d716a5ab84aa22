// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/imported/model_file.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "moonhalo/engine/base/strided_read.h"
#include "moonhalo/engine/deferred/deferred_read.h"

namespace moonhalo::imported {

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
  const auto read = [&stored](int64_t begin, int64_t bytes, void* target) {
    stored.file->read_all(stored.begin + begin, bytes, target);
  };
  return read_strided_box(box, stored.strides, stored.offset, stored.dtype, read);
}

at::Tensor deferred_tensor(const StoredTensor& stored, c10::Device device, bool requires_grad) {
  const auto read = [stored](const Box& box) { return read_box(stored, box); };
  const auto options = at::TensorOptions(stored.dtype).device(device);
  return deferred_read(stored.sizes, options, read).requires_grad_(requires_grad);
}

}  // namespace moonhalo::imported
