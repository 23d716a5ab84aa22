// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/regions.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <optional>

namespace moonhalo {
namespace {

using regions::kMostDims;
using regions::kMostRegions;
using regions::Launch;
using regions::Region;

std::array<RegionKernels, c10::COMPILE_TIME_MAX_DEVICE_TYPES>& table() {
  static std::array<RegionKernels, c10::COMPILE_TIME_MAX_DEVICE_TYPES> kernels{};
  return kernels;
}

// Null where tensors of such a device are copied one by one.
const RegionKernels* kernels_for(c10::Device device) {
  const RegionKernels& found = table()[static_cast<size_t>(device.type())];
  return found.copy != nullptr ? &found : nullptr;
}

at::Tensor part_of(const at::Tensor& into, const RegionSum& sum) {
  at::Tensor part = into;
  for (int64_t d = 0; d < into.dim(); ++d) part = part.narrow(d, sum.begin[d], sum.part.size(d));
  return part;
}

// Collects regions, and launches when they are as many as a launch takes.
class Collected {
 public:
  Collected(void (*launch)(const Launch&, const at::Tensor&, const RegionKernels&), const at::Tensor& of,
            const RegionKernels& kernels)
      : launch_(launch), of_(of), kernels_(kernels) {
    all_.count = all_.dims = 0;
  }

  void add(const at::Tensor& given, const at::Tensor& to, at::IntArrayRef begin = {}) {
    if (to.numel() == 0) return;
    if (to.dim() != all_.dims) launch();
    const at::Tensor from = given.resolve_conj().resolve_neg();
    if (!from.is_same(given)) written_out_.push_back(from);
    all_.dims = static_cast<int>(to.dim());
    Region& region = all_.regions[all_.count];
    region.from = from.const_data_ptr();
    region.to = to.mutable_data_ptr();
    region.end = all_.elements() + to.numel();
    for (int d = 0; d < all_.dims; ++d) {
      region.size[d] = to.size(d);
      region.from_stride[d] = from.stride(d);
      region.to_stride[d] = to.stride(d);
      region.begin[d] = begin.empty() ? 0 : begin[d];
    }
    if (++all_.count == kMostRegions) launch();
  }
  void launch() {
    if (all_.count > 0) launch_(all_, of_, kernels_);
    all_.count = 0;
    written_out_.clear();
  }

 private:
  Launch all_;
  std::vector<at::Tensor> written_out_;  // until they are launched, so that none takes another's memory
  void (*launch_)(const Launch&, const at::Tensor&, const RegionKernels&);
  const at::Tensor& of_;
  const RegionKernels& kernels_;
};

void launch_copy(const Launch& launch, const at::Tensor& of, const RegionKernels& kernels) {
  kernels.copy(launch, static_cast<int>(of.itemsize()), of.device());
}
void launch_add(const Launch& launch, const at::Tensor& of, const RegionKernels& kernels) {
  kernels.add(launch, of.scalar_type(), of.device());
}

}  // namespace

void register_region_kernels(c10::DeviceType type, const RegionKernels& kernels) {
  table()[static_cast<size_t>(type)] = kernels;
}

void copy_regions(const std::vector<RegionCopy>& copies) {
  const RegionKernels* const kernels = copies.empty() ? nullptr : kernels_for(copies[0].to.device());
  const auto fits = [](const RegionCopy& copy) { return copy.to.dim() <= kMostDims; };
  if (kernels == nullptr || !std::all_of(copies.begin(), copies.end(), fits)) {
    for (const RegionCopy& copy : copies) copy.to.copy_(copy.from);
    return;
  }
  Collected launch(launch_copy, copies[0].to, *kernels);
  for (const RegionCopy& copy : copies) launch.add(copy.from, copy.to);
  launch.launch();
}

void add_regions(const at::Tensor& into, const std::vector<RegionSum>& sums) {
  const RegionKernels* const kernels = kernels_for(into.device());
  if (kernels == nullptr || into.dim() > kMostDims || !(into.is_floating_point() || into.is_complex())) {
    for (const RegionSum& sum : sums) part_of(into, sum).add_(sum.part);
    return;
  }
  Collected launch(launch_add, into, *kernels);
  for (const RegionSum& sum : sums) launch.add(sum.part, part_of(into, sum), sum.begin);
  launch.launch();
}

}  // namespace moonhalo
