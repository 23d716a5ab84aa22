// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/frames.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/base/file_version.h"
#include "moonhalo/io/formats/dataset_info.h"

namespace moonhalo::io {
namespace {

/// Files that stay open: enough for samples that jump about, far from what a process may have.
constexpr size_t kOpenFiles = 32;

int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

/// The dataset was another one when its head was read.
void check_unchanged(bool unchanged, const Dataset& dataset, const std::string& required) {
  TORCH_CHECK_VALUE(unchanged, "read: dataset \"", dataset.name(), "\" of file \"", dataset.path(),
                    "\" has changed since it was opened\n  have  shape ", shape_string(dataset.shape()), ", expected ",
                    required, "\n  fix   leave files alone while they are read, and open them again");
}

/// True where the elements of one step are not together, as [time, y, x] in Fortran's order.
bool steps_are_inside(const Dataset& dataset, const FrameSource& source) {
  return std::any_of(source.space_dims.begin(), source.space_dims.end(), [&](int64_t dim) {
    return dataset.info().reversed ? dim > source.step_dim : dim < source.step_dim;
  });
}

}  // namespace

FrameReader::FrameReader(std::vector<FrameSource> sources, Box rows, at::ScalarType dtype, int64_t cache_bytes)
    : sources_(std::move(sources)), rows_(std::move(rows)), dtype_(dtype), cache_bytes_(cache_bytes) {}

/// The first time it must be the version that was opened, then the very same file.
void FrameReader::check_same_file(const FrameSource& source) {
  if (source.version.empty()) return;
  const uint64_t now = file_identity(source.path, source.dataset);
  const auto [known, first] = identities_.emplace(std::pair(source.path, source.dataset), now);
  if (!first && known->second == now) return;
  const std::string version = file_version(source.path);
  const bool same = version == source.version;
  if (first && same) return;
  if (first) identities_.erase(known);
  TORCH_CHECK_VALUE(false, "read: file \"", source.path, "\" has changed since it was opened\n  have  ",
                    same ? "another file of the same version, " : "", version, ", expected ", source.version,
                    "\n  fix   leave files alone while they are read, and open them again");
}

Dataset FrameReader::dataset(const FrameSource& source) {
  const auto file =
      std::find_if(files_.begin(), files_.end(), [&](const auto& one) { return one.first == source.path; });
  if (file == files_.end()) {
    files_.emplace_front(source.path, open(source.path));
    if (files_.size() > kOpenFiles) {
      std::erase_if(datasets_, [&](const auto& one) { return one.first.first == files_.back().first; });
      files_.pop_back();
    }
  } else {
    files_.splice(files_.begin(), files_, file);
  }
  const auto key = std::pair(source.path, source.dataset);
  auto found = datasets_.find(key);
  if (found == datasets_.end()) found = datasets_.emplace(key, files_.front().second[source.dataset]).first;
  return found->second;
}

FrameReader::Steps FrameReader::steps_together(const Dataset& dataset, const FrameSource& source, int64_t step) const {
  if (source.step_dim < 0) return {0, 1};
  const auto dim = static_cast<size_t>(source.step_dim);
  check_unchanged(dim < dataset.shape().size() && step < dataset.shape()[dim], dataset, "step " + std::to_string(step));
  int64_t frame = static_cast<int64_t>(c10::elementSize(dtype_)) * rows_.numel();
  for (const int64_t channel : source.channel_dims) frame *= dataset.shape()[static_cast<size_t>(channel)];
  int64_t together = 1;
  if (!dataset.chunks().empty() && !dataset.filters().empty()) {
    together = dataset.chunks()[dim];
  } else if (steps_are_inside(dataset, source)) {
    // As many as there is space for, since reading one brings its neighbours.
    const std::vector<int64_t> rows = dataset.rows_together();
    if (!rows.empty()) together = std::clamp<int64_t>(cache_bytes_ / std::max<int64_t>(frame, 1), 1, rows[dim]);
  }
  const int64_t first = step / together * together;
  if (frame * together > cache_bytes_) return {step, 1};
  return {first, std::min(together, dataset.shape()[dim] - first)};
}

at::Tensor FrameReader::load(const Dataset& dataset, const FrameSource& source, int64_t sample,
                             const Steps& steps) const {
  std::vector<Slice> slices = whole(dataset.shape());
  const auto fits = [&](int64_t dim, int64_t end) {
    check_unchanged(dim < dataset.ndim() && end <= dataset.shape()[static_cast<size_t>(dim)], dataset,
                    std::to_string(end) + " along dim " + std::to_string(dim));
  };
  std::vector<int64_t> order, shape = {steps.count, -1};
  const auto kept = [&](int64_t dim) { return dim - (source.sample_dim >= 0 && source.sample_dim < dim); };
  if (source.step_dim >= 0) {
    fits(source.step_dim, steps.first + steps.count);
    slices[static_cast<size_t>(source.step_dim)] = {steps.first, steps.count};
    order.push_back(kept(source.step_dim));
  }
  if (source.sample_dim >= 0) {
    fits(source.sample_dim, sample + 1);
    slices[static_cast<size_t>(source.sample_dim)] = {sample, 1, 1, true};
  }
  for (const int64_t dim : source.channel_dims) order.push_back(kept(dim));
  for (size_t i = 0; i < source.space_dims.size(); ++i) {
    const Interval& rows = rows_[static_cast<int64_t>(i)];
    fits(source.space_dims[i], rows.end);
    slices[static_cast<size_t>(source.space_dims[i])] = {rows.begin, rows.size()};
    order.push_back(kept(source.space_dims[i]));
    shape.push_back(rows.size());
  }
  shape[1] = 1;
  for (const int64_t dim : source.channel_dims) shape[1] *= dataset.shape()[static_cast<size_t>(dim)];
  const at::Tensor read = Selection(dataset, slices).read({.dtype = dtype_, .decode = true});
  return read.permute(order).reshape(shape);
}

void FrameReader::keep(const Key& key, const at::Tensor& frames) {
  const int64_t bytes = bytes_of(frames);
  if (bytes > cache_bytes_) return;
  while (kept_bytes_ + bytes > cache_bytes_) {
    const auto last = slabs_.find(uses_.back());
    kept_bytes_ -= bytes_of(last->second.frames);
    slabs_.erase(last);
    uses_.pop_back();
  }
  uses_.push_front(key);
  slabs_.emplace(key, Slab{frames, uses_.begin()});
  kept_bytes_ += bytes;
}

/// The frame of a tensor, a view of it where its dims allow that.
at::Tensor FrameReader::frame_of(const FrameSource& source, const FramePlace& place) const {
  at::Tensor values = source.values;
  TORCH_CHECK_VALUE(source.changes < 0 || static_cast<int64_t>(values._version()) == source.changes,
                    "read: the tensor \"", source.dataset,
                    "\" has changed since it became a field\n  have  a write into it, number ", values._version(),
                    "\n  fix   leave it alone while it is read, or give a clone() of it");
  std::vector<int64_t> order, shape = {1};
  for (size_t i = 0; i < source.space_dims.size(); ++i) {
    const Interval& rows = rows_[static_cast<int64_t>(i)];
    values = values.narrow(source.space_dims[i], rows.begin, rows.size());
  }
  for (const auto& [dim, index] : {std::pair(source.step_dim, place.step), {source.sample_dim, place.sample}}) {
    if (dim < 0) continue;
    values = values.narrow(dim, index, 1);
    order.push_back(dim);
  }
  for (const int64_t dim : source.channel_dims) {
    order.push_back(dim);
    shape[0] *= values.size(dim);
  }
  for (const int64_t dim : source.space_dims) {
    order.push_back(dim);
    shape.push_back(values.size(dim));
  }
  return values.permute(order).reshape(shape);
}

void FrameReader::read(const FramePlace& place, const at::Tensor& out) {
  if (rows_.empty()) return;
  const FrameSource& from = source(place.source);
  if (from.values.defined()) {
    out.copy_(frame_of(from, place));
    return;
  }
  check_same_file(from);
  try {
    out.copy_(frame_in_file(from, place));
  } catch (const c10::Error&) {
    check_same_file(from);  // a file that was changed meanwhile looks damaged
    throw;
  }
}

at::Tensor FrameReader::frame_in_file(const FrameSource& source, const FramePlace& place) {
  const Dataset data = dataset(source);
  const Steps steps = steps_together(data, source, place.step);
  const Key key{place.source, place.sample, steps.first};
  const auto found = slabs_.find(key);
  at::Tensor frames;
  if (found != slabs_.end()) {
    uses_.splice(uses_.begin(), uses_, found->second.use);
    frames = found->second.frames;
  } else {
    frames = load(data, source, place.sample, steps);
    check_same_file(source);
    keep(key, frames);
  }
  return frames.select(0, source.step_dim < 0 ? 0 : place.step - steps.first);
}

}  // namespace moonhalo::io
