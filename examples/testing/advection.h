// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

// A step of advection, upwind, on a periodic domain: u and the two velocities of [height, width].
at::Tensor advect(const at::Tensor& u, const at::Tensor& down, const at::Tensor& right, double step);
