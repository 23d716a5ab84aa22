// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <vector>

#include "moonhalo/engine/forecast/search/division_search.h"
#include "moonhalo/engine/moonhalo.h"

namespace moonhalo::testing {

/// Two convolutions over fields [batch, channels, height, width], with `hidden` channels between them.
struct DividedNet {
  int64_t batch = 1, channels = 4, hidden = 16, kernel = 3, height = 16, width = 16;
};

/// Divides the net as a search asks for: samples, rows and columns are cut, the first convolution by its outputs and
/// the second by its inputs, and parameters are stored or copied over the data ranks. AdamW trains it.
inline BuildDivided build_divided(const DividedNet& shape) {
  return [shape](const Division& division, Communicator& world) {
    const auto conv = [&](int64_t in, int64_t out) {
      return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, shape.kernel).padding(shape.kernel / 2));
    };
    torch::nn::Sequential net(conv(shape.channels, shape.hidden), torch::nn::ReLU(),
                              conv(shape.hidden, shape.channels));
    const MeshPtr mesh = init_device_mesh(world, "cpu", division.mesh_shape(), Division::mesh_names());
    const Placement whole = replicate();
    const auto cut = [&](int64_t dim) { return Placements{whole, whole, whole, shard(dim)}; };
    ParallelPlan plan;
    if (division.tensor > 1) plan.parameters = {{"0.weight", cut(0)}, {"0.bias", cut(0)}, {"2.weight", cut(1)}};
    parallelize_module(net.ptr(), mesh, plan);
    const MeshPtr data = mesh->slice({"data"});
    if (division.is_stored) {
      fully_shard(*net, data, {.min_numel = 1});
    } else {
      replicate(*net, data);
    }
    const SpecPtr spec = make_spec(mesh, {shape.batch, shape.channels, shape.height, shape.width},
                                   {shard(0), shard(2), shard(3), whole});
    const at::Tensor x = from_local(at::ones(spec->local_shape()), spec);
    const auto optimizer = std::make_shared<ParallelOptimizer>(
        build_optimizer<torch::optim::AdamW>(*net, torch::optim::AdamWOptions(1e-3)));
    BuiltStep built;
    built.parameters = optimizer->parameters();
    built.step = [net, x, optimizer]() mutable {
      optimizer->zero_grad();
      call(net, x).square().mean().backward();
      optimizer->step();
    };
    return built;
  };
}

/// Blocks of two linear layers, with 4 x `width` features between them, over samples [batch, width].
struct DividedChain {
  int64_t batch = 64, width = 64, blocks = 4;
};

/// The blocks one after the other, each computed again in backward or not.
struct ChainImpl : torch::nn::Module {
  ChainImpl(const DividedChain& shape, bool recomputes) : recomputes(recomputes) {
    for (int64_t i = 0; i < shape.blocks; ++i) {
      blocks.push_back(
          register_module("block" + std::to_string(i),
                          torch::nn::Sequential(torch::nn::Linear(shape.width, 4 * shape.width), torch::nn::ReLU(),
                                                torch::nn::Linear(4 * shape.width, shape.width))));
    }
  }

  at::Tensor forward(at::Tensor x) {
    for (torch::nn::Sequential& block : blocks) {
      const auto run = [&block](const at::Tensor& in) { return call(block, in); };
      x = recomputes ? checkpoint(run, x) : run(x);
    }
    return x;
  }

  std::vector<torch::nn::Sequential> blocks;
  bool recomputes;
};

/// Divides the chain by its samples. AdamW trains it.
inline BuildDivided build_chain(const DividedChain& shape) {
  return [shape](const Division& division, Communicator& world) {
    auto net = std::make_shared<ChainImpl>(shape, division.recomputes);
    const MeshPtr mesh = init_device_mesh(world, "cpu", division.mesh_shape(), Division::mesh_names());
    parallelize_module(net, mesh, {});
    const MeshPtr data = mesh->slice({"data"});
    if (division.is_stored) {
      fully_shard(*net, data, {.min_numel = 1});
    } else {
      replicate(*net, data);
    }
    const SpecPtr spec = make_spec(mesh, {shape.batch, shape.width}, {shard(0), replicate(), replicate(), replicate()});
    const at::Tensor x = from_local(at::ones(spec->local_shape()), spec);
    const auto optimizer = std::make_shared<ParallelOptimizer>(
        build_optimizer<torch::optim::AdamW>(*net, torch::optim::AdamWOptions(1e-3)));
    BuiltStep built;
    built.parameters = optimizer->parameters();
    built.step = [net, x, optimizer]() mutable {
      optimizer->zero_grad();
      call(net, x).square().mean().backward();
      optimizer->step();
    };
    return built;
  };
}

}  // namespace moonhalo::testing
