// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/testing/same_as_plain.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <sstream>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/testing/draw.h"
#include "moonhalo/engine/testing/values.h"

namespace moonhalo::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Outcome {
  Tensors results, gradients, second_gradients;
};

bool differentiable(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

double tolerance_of(const SameAsPlainOptions& options, const at::Tensor& tensor) {
  if (options.tolerance >= 0) return options.tolerance;
  switch (tensor.scalar_type()) {
    case at::kDouble:
    case at::kComplexDouble:
      return 1e-10;
    case at::kFloat:
    case at::kComplexFloat:
      return 1e-4;
    case at::kHalf:
      return 1e-2;
    case at::kBFloat16:
      return 5e-2;
    default:
      return 0;
  }
}

// The gradient that stands for a result: fixed values by element, cut as the result is.
at::Tensor cotangent_of(const at::Tensor& result, int64_t seed) {
  const at::Tensor full = make_tensor(result.sizes(), seed, result.scalar_type());
  if (!is_shard_tensor(result)) return full.to(result.device());
  const SpecPtr held = without_partial(spec(result));
  return shard_of(full, held->mesh(), held->placements());
}

// Those of `inputs` that gradients are asked for; undefined where nothing depends on one.
Tensors gradients_of(const Tensors& results, const Tensors& inputs, int64_t seed, bool create_graph) {
  torch::autograd::variable_list roots, cotangents, leaves;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined() || !results[i].requires_grad()) continue;
    roots.push_back(results[i]);
    cotangents.push_back(cotangent_of(results[i], seed + static_cast<int64_t>(i)));
  }
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) leaves.push_back(input);
  }
  if (roots.empty() || leaves.empty()) return {};
  return torch::autograd::grad(roots, leaves, cotangents, /*retain_graph=*/create_graph, create_graph,
                               /*allow_unused=*/true);
}

// Random operators draw the same numbers on plain tensors and on blocks, and afterwards as if nothing had been drawn.
class SameDraws {
 public:
  explicit SameDraws(uint64_t seed) : before_(generator_.get_state()) { generator_.set_current_seed(seed); }
  ~SameDraws() { generator_.set_state(before_); }
  SameDraws(const SameDraws&) = delete;

 private:
  ElementwiseRandom elementwise_;
  at::Generator generator_ = default_generator();
  at::Tensor before_;
};

Outcome outcome_of(const Program& program, const Tensors& inputs, const SameAsPlainOptions& options) {
  const at::AutoGradMode recording(options.gradients || options.gradgrad);
  const SameDraws draws(options.seed);
  Outcome outcome;
  outcome.results = program(inputs);
  if (!options.gradients && !options.gradgrad) return outcome;
  outcome.gradients = gradients_of(outcome.results, inputs, 77, options.gradgrad);
  if (options.gradgrad) outcome.second_gradients = gradients_of(outcome.gradients, inputs, 177, false);
  return outcome;
}

at::Tensor input_of(const at::Tensor& given, const SameAsPlainOptions& options) {
  const bool required = (options.gradients || options.gradgrad) && differentiable(given);
  return given.detach().clone().requires_grad_(required);
}

// Every rank walks the same lists, since full_tensor is collective.
void compare(const char* what, const Tensors& actual, const Tensors& expected, const SameAsPlainOptions& options,
             std::ostream& out) {
  if (actual.size() != expected.size()) {
    out << "\n  " << what << "s: " << actual.size() << " tensors instead of " << expected.size();
    return;
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool sharded = actual[i].defined() && is_shard_tensor(actual[i]);
    const at::Tensor whole = sharded ? full_tensor(actual[i].detach()) : actual[i];
    const double tolerance = expected[i].defined() ? tolerance_of(options, expected[i]) : 0;
    const std::string text = difference(whole, expected[i].defined() ? expected[i].cpu() : expected[i], tolerance);
    if (text.empty()) continue;
    out << "\n  " << what << " " << i << ": " << text;
    if (sharded) out << "\n    on blocks it is " << spec(actual[i])->to_string();
  }
}

// The text of the first rank that has one, on all ranks. Collective.
std::string agreed(const std::string& text, const DeviceMesh& mesh) {
  const int64_t ranks = mesh.size();
  const c10::Device device = device_of(mesh);
  const at::Tensor mine = at::scalar_tensor(static_cast<int64_t>(text.size()), at::kLong).view({1}).to(device);
  at::Tensor all = at::empty({ranks}, at::TensorOptions(at::kLong).device(device));
  mesh.group().all_gather(mine, std::vector<int64_t>(ranks, 1), all);
  const at::Tensor lengths = all.cpu();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto length = lengths[rank].item<int64_t>();
    if (length == 0) continue;
    at::Tensor bytes = at::zeros({length}, at::kByte);
    if (rank == mesh.rank()) std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
    bytes = bytes.to(device);
    mesh.group().broadcast(bytes, static_cast<int>(rank));
    bytes = bytes.cpu();
    const auto* first = bytes.const_data_ptr<uint8_t>();
    return "on rank " + std::to_string(rank) + " of " + std::to_string(ranks) + std::string(first, first + length);
  }
  return "";
}

// Compares with the program on these placements. Collective.
std::string difference_on(const MeshPtr& mesh, const Program& program, const Tensors& inputs, const Outcome& expected,
                          const std::vector<std::vector<Placement>>& placements, const SameAsPlainOptions& options) {
  Tensors blocks;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor given = input_of(inputs[i], options);
    blocks.push_back(placements[i].empty()
                         ? given.detach().to(device_of(*mesh)).requires_grad_(given.requires_grad())
                         : shard_of(given, mesh, placements[i]).requires_grad_(given.requires_grad()));
  }
  const std::string source = source_of(placements, options.names);
  if (options.before_blocks) options.before_blocks(source);
  const auto run = [&] {
    try {
      return outcome_of(program, blocks, options);
    } catch (c10::Error& error) {
      error.add_context("same_as_plain: on placements " + source);
      throw;
    }
  };
  const Outcome actual = run();
  std::ostringstream out;
  compare("result", actual.results, expected.results, options, out);
  compare("gradient", actual.gradients, expected.gradients, options, out);
  compare("gradient of the gradients", actual.second_gradients, expected.second_gradients, options, out);
  const std::string text = agreed(out.str(), *mesh);
  return text.empty() ? "" : text + "\n  placements  " + source;
}

void check_inputs(const Tensors& inputs, const SameAsPlainOptions& options) {
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK_VALUE(input.defined(), "same_as_plain: an input is undefined\n  fix   give plain tensors");
    TORCH_CHECK_TYPE(!is_shard_tensor(input), "same_as_plain: an input is a ShardTensor\n  have  ",
                     spec(input)->to_string(), "\n  fix   give plain tensors, which are cut here");
  }
  TORCH_CHECK_VALUE(!inputs.empty(), "same_as_plain: no inputs\n  fix   give the tensors that are to be cut");
  TORCH_CHECK_VALUE(options.placements.empty() || options.placements.size() == inputs.size(),
                    "same_as_plain: placements for ", options.placements.size(), " of ", inputs.size(),
                    " inputs\n  fix   give a list for each input; an empty one for a plain tensor");
  TORCH_CHECK_VALUE(!options.placements.empty() || options.draws > 0,
                    "same_as_plain: nothing to compare\n  have  draws = ", options.draws,
                    "\n  fix   give a positive number of draws, or placements");
}

}  // namespace

std::string difference_from_plain(const MeshPtr& mesh, const Program& program, const std::vector<at::Tensor>& inputs,
                                  const SameAsPlainOptions& options) {
  check_inputs(inputs, options);
  Tensors plain;
  for (const at::Tensor& input : inputs) plain.push_back(input_of(input, options));
  const Outcome expected = outcome_of(program, plain, options);
  if (!options.placements.empty()) return difference_on(mesh, program, inputs, expected, options.placements, options);
  SeededNumbers draw(options.seed);
  for (int64_t i = 0; i < options.draws; ++i) {
    const auto placements = draw_placements(draw, inputs, mesh->shape(), i % inputs.size());
    const std::string text = difference_on(mesh, program, inputs, expected, placements, options);
    if (!text.empty()) return text;
  }
  return "";
}

std::string difference_from_plain(const Program& program, const std::vector<at::Tensor>& inputs,
                                  const SameAsPlainOptions& options) {
  const int64_t product = std::accumulate(options.mesh.begin(), options.mesh.end(), int64_t{1}, std::multiplies<>());
  const int64_t ranks = options.ranks > 0 ? options.ranks : (options.mesh.empty() ? 3 : product);
  std::string text;
  run_ranks(static_cast<int>(ranks), [&](Communicator& world) {
    const auto shape = options.mesh.empty() ? std::vector<int64_t>{ranks} : options.mesh;
    const std::string found = difference_from_plain(init_device_mesh(world, "cpu", shape), program, inputs, options);
    if (world.rank() == 0) text = found;
  });
  return text;
}

}  // namespace moonhalo::testing
