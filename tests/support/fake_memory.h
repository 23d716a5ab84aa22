// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

namespace moonhalo::testing::fake {

/// Memory of the devices. A file is mapped twice: without any rights where tensors point, so that a program that reads
/// it there ends, and with all rights where kernels look. What is allocated or freed becomes NaN (all bits set) when
/// its stream gets there; what a stream has freed, only the same stream is given again.
c10::Allocator& device_allocator();
/// Where kernels see this address of a device.
void* kernel_view(const void* device_address);
/// `stream` uses this allocation, so it is not freed before the stream gets here.
void note_use(const c10::DataPtr& allocation, const c10::Stream& stream);

/// Page-locked memory of the host, which copies may use after they were asked for; poison once it is freed.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);

}  // namespace moonhalo::testing::fake
