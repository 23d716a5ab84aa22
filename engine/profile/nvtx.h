// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo {

/// Ranges that Nsight Systems shows beside the kernels of a GPU (NVTX). LibTorch makes them, so a build without CUDA
/// has no other dependency, and no ranges. Not collective.

/// "" if LibTorch makes such ranges, else what is missing and the remedy, after the name of the caller.
std::string problem_of_nvtx(const std::string& caller);
/// Begins a range of this thread, and ends the last one that began.
void push_nvtx(const char* name);
void pop_nvtx();

}  // namespace moonhalo
