// SPDX-License-Identifier: Apache-2.0
// The precompiled header of benchmarks that train: modules and optimizers take ten seconds of every file.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "pch.h"
