// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>

namespace moonhalo {

/// An allocator of addresses without memory of their own: pages of every allocation are pages of one window, which the
/// process has once. Every address can be read and written, but what is written is lost. Reports to LibTorch's memory
/// profiler like the allocator of the CPU, with the bytes that were asked for.
c10::Allocator& window_allocator();

}  // namespace moonhalo
