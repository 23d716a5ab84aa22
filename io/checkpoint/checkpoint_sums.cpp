// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/checkpoint_sums.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/io/codecs/crc32c.h"

namespace moonhalo::io {

std::vector<uint32_t> together(Communicator& world, const std::vector<uint32_t>& values) {
  const auto count = static_cast<int64_t>(values.size());
  at::Tensor own = at::empty({count}, at::kInt), all = at::empty({count * world.size()}, at::kInt);
  std::copy_n(values.begin(), count, reinterpret_cast<uint32_t*>(own.mutable_data_ptr<int32_t>()));
  world.all_gather(own, std::vector<int64_t>(world.size(), count), all);
  std::vector<uint32_t> result(values.size(), 0);
  const auto* data = reinterpret_cast<const uint32_t*>(all.const_data_ptr<int32_t>());
  for (int64_t i = 0; i < all.numel(); ++i) result[static_cast<size_t>(i % count)] ^= data[i];
  return result;
}

void add_checksums(std::vector<CheckedFile>& files, const std::vector<uint32_t>& addends) {
  size_t next = 0;
  for (CheckedFile& file : files) {
    for (StoredTensor& tensor : file.tensors)
      tensor.crc32c = crc32c_of_parts(addends[next++], static_cast<uint64_t>(tensor.end - tensor.begin));
  }
}

void write_header(PositionedFile& to, CheckedFile file) {
  const std::string header = lay_out_safetensors(file.tensors, std::move(file.metadata));
  to.write_at(header.data(), static_cast<int64_t>(header.size()), 0);
}

}  // namespace moonhalo::io
