// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The umbrella header of Moonhalo, a domain-parallel tensor engine on LibTorch. README.md has a first program.

#include <ATen/ATen.h>

#include "moonhalo/engine/comm/check_calls.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/model/local_map.h"
#include "moonhalo/engine/model/optimizer_step.h"
#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/model/recompute.h"
#include "moonhalo/engine/pipeline/pipeline.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/box_grid.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/tensor/host_block.h"
#include "moonhalo/engine/tensor/lift.h"
#include "moonhalo/engine/tensor/output_cut.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/tensor_meaning.h"
#include "moonhalo/engine/training/clip.h"
#include "moonhalo/engine/training/fully_shard.h"
#include "moonhalo/engine/training/gradient_sync.h"
#include "moonhalo/io/checkpoint/checkpoint.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/ops/indexing/cut_graph.h"
#include "moonhalo/ops/neighborhood/operator.h"
#include "moonhalo/ops/points/knn.h"
#include "moonhalo/ops/window/grid_sample.h"
#include "moonhalo/ops/window/stencil.h"
