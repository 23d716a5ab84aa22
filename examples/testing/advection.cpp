// SPDX-License-Identifier: Apache-2.0
// This operator consists of operators of LibTorch, so it runs on blocks, and has a gradient. Programs in C++ link this
// library (test_advection.cpp), scripts load it (test_advection.lua).
#include "advection.h"

#include <ATen/ATen.h>
#include <torch/library.h>

at::Tensor advect(const at::Tensor& u, const at::Tensor& down, const at::Tensor& right, double step) {
  const at::Tensor from_above = u - u.roll(1, 0), from_left = u - u.roll(1, 1);
  return u - step * (down * from_above + right * from_left);
}

TORCH_LIBRARY(example, library) {
  library.def("advect(Tensor u, Tensor down, Tensor right, float step) -> Tensor", &advect);
}
