// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/nvtx.h"

#include <torch/csrc/profiler/stubs/base.h>

namespace moonhalo {

std::string problem_of_nvtx(const std::string& caller) {
  if (torch::profiler::impl::cudaStubs()->enabled()) return "";
  return caller +
         ": no NVTX ranges in this build\n  have  LibTorch without CUDA\n  fix   build with the preset cuda "
         "(docs/gpu.md), or leave nvtx out";
}

void push_nvtx(const char* name) { torch::profiler::impl::cudaStubs()->rangePush(name); }

void pop_nvtx() { torch::profiler::impl::cudaStubs()->rangePop(); }

}  // namespace moonhalo
