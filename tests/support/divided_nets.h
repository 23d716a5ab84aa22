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

/// Blocks of two linear layers, with 4 x `width` features between them, over `micros` micro-batches [batch, width] a
/// step.
struct DividedChain {
  int64_t batch = 64, width = 64, blocks = 4, micros = 1;
};

/// Blocks one after the other, each computed again in backward or not.
struct ChainImpl : torch::nn::Module {
  ChainImpl(int64_t width, int64_t count, bool recomputes) : recomputes(recomputes) {
    for (int64_t i = 0; i < count; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i),
                                       torch::nn::Sequential(torch::nn::Linear(width, 4 * width), torch::nn::ReLU(),
                                                             torch::nn::Linear(4 * width, width))));
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

/// A stage of the chain, with AdamW, and samples on its mesh.
struct ChainStage {
  ChainStage(const DividedChain& shape, const Division& division, const MeshPtr& mesh)
      : net(std::make_shared<ChainImpl>(shape.width, shape.blocks / division.stages, division.recomputes)) {
    parallelize_module(net, mesh, {});
    const SpecPtr spec = make_spec(mesh, {shape.batch, shape.width}, {shard(0), replicate(), replicate(), replicate()});
    for (int64_t i = 0; i < shape.micros; ++i) samples.push_back(from_local(at::ones(spec->local_shape()), spec));
  }
  void train() {
    optimizer = std::make_shared<ParallelOptimizer>(
        build_optimizer<torch::optim::AdamW>(*net, torch::optim::AdamWOptions(1e-3)));
  }

  std::shared_ptr<ChainImpl> net;
  std::vector<at::Tensor> samples;
  std::shared_ptr<ParallelOptimizer> optimizer;
};

/// The chain divided by its samples. AdamW trains it.
inline BuiltStep build_whole_chain(const DividedChain& shape, const Division& division, Communicator& world) {
  const MeshPtr mesh = init_device_mesh(world, "cpu", division.mesh_shape(), Division::mesh_names());
  ChainStage whole(shape, division, mesh);
  const MeshPtr data = mesh->slice({"data"});
  if (division.is_stored) {
    fully_shard(*whole.net, data, {.min_numel = 1});
  } else {
    replicate(*whole.net, data);
  }
  whole.train();
  BuiltStep built;
  built.parameters = whole.optimizer->parameters();
  built.step = [whole]() mutable {
    whole.optimizer->zero_grad();
    for (const at::Tensor& x : whole.samples) call(whole.net, x).square().mean().backward();
    whole.optimizer->step();
  };
  return built;
}

/// The chain as stages of a pipeline, each divided by its samples. AdamW trains the rank's own stage.
inline BuiltStep build_staged_chain(const DividedChain& shape, const Division& division, Communicator& world) {
  const MeshPtr mesh = init_device_mesh(world, "cpu", division.pipeline_mesh_shape(), Division::pipeline_mesh_names());
  const auto stages = std::make_shared<std::vector<ChainStage>>();
  std::vector<Pipeline::Stage> calls;
  for (int64_t i = 0; i < division.stages; ++i) {
    calls.push_back(
        [stages, i](const Pipeline::Tensors& in) { return Pipeline::Tensors{call(stages->at(i).net, in[0])}; });
  }
  const auto pipeline =
      std::make_shared<Pipeline>(mesh, "stages", std::move(calls), PipelineOptions{.micros = shape.micros});
  for (int64_t i = 0; i < division.stages; ++i) stages->emplace_back(shape, division, pipeline->mesh());
  ChainStage& own = stages->at(mesh->coordinate("stages"));
  own.train();
  std::vector<Pipeline::Tensors> samples;
  for (const at::Tensor& x : own.samples) samples.push_back({x});
  BuiltStep built;
  built.parameters = own.optimizer->parameters();
  built.step = [pipeline, optimizer = own.optimizer, samples]() mutable {
    optimizer->zero_grad();
    pipeline->train_step(samples, [](const Pipeline::Tensors& out, int64_t) { return out[0].square().mean(); });
    optimizer->step();
  };
  return built;
}

/// Divides the chain as a search asks for. With several micro-batches in the division, these share out the samples.
inline BuildDivided build_chain(const DividedChain& whole) {
  return [whole](const Division& division, Communicator& world) {
    DividedChain shape = whole;
    shape.batch /= division.micro_batches;
    shape.micros *= division.micro_batches;
    return division.stages > 1 ? build_staged_chain(shape, division, world) : build_whole_chain(shape, division, world);
  };
}

}  // namespace moonhalo::testing
