// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Moonhalo: domain-parallel scientific machine learning on LibTorch. See README.md for a first program.

#include <ATen/ATen.h>

#include "engine/check_calls.h"
#include "engine/check_replicated.h"
#include "engine/communicator.h"
#include "engine/deferred.h"
#include "engine/halo.h"
#include "engine/mesh.h"
#include "engine/optimizer_step.h"
#include "engine/output_cut.h"
#include "engine/parallelize.h"
#include "engine/random.h"
#include "engine/shard_tensor.h"
#include "engine/spec.h"
#include "io/domain_file.h"
#include "io/scatter.h"
#include "ops/grid_sample.h"
#include "ops/neighborhood_attention.h"
#include "ops/neighbors.h"
#include "ops/stencil.h"
