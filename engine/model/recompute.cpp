// SPDX-License-Identifier: Apache-2.0
// A checkpointed segment is one node of the graph. Its backward builds the segment's own graph again, cut off from what
// came before, and runs that:
//
//     inputs ---------> [ SegmentNode ] --> outputs          in the program's graph
//     captured leaves /
//
//     copies of inputs --> ops of the segment --> outputs    built and dropped, once per run; edges that lead out of
//     the
//     sinks ------------/                                    segment end in sinks, where the gradients are picked up
#include "moonhalo/engine/model/recompute.h"

#include <ATen/Functions.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "moonhalo/engine/base/autograd_compat.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/front_parameters.h"

namespace moonhalo {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
namespace impl = torch::autograd::impl;

// The second run must find these as the first did.

struct AutocastSettings {
  static constexpr std::array<c10::DeviceType, 2> kDevices = {c10::DeviceType::CPU, c10::DeviceType::CUDA};

  static AutocastSettings current() {
    AutocastSettings now;
    for (size_t i = 0; i < kDevices.size(); ++i) {
      now.enabled[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      now.dtype[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
    return now;
  }
  void apply() const {
    for (size_t i = 0; i < kDevices.size(); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], enabled[i]);
      at::autocast::set_autocast_dtype(kDevices[i], dtype[i]);
    }
  }

  std::array<bool, 2> enabled{};
  std::array<at::ScalarType, 2> dtype{};
};

at::Tensor random_state() {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Tensor& state) {
  at::Generator generator = default_generator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

struct Conditions {
  AutocastSettings autocast = AutocastSettings::current();
  at::Tensor random = random_state();
};

class Under {
 public:
  explicit Under(const Conditions& conditions) {
    conditions.autocast.apply();
    set_random_state(conditions.random);
    at::autocast::increment_nesting();
  }
  ~Under() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.autocast.apply();
    set_random_state(before_.random);
  }
  Under(const Under&) = delete;
  Under& operator=(const Under&) = delete;

 private:
  Conditions before_;
};

/// A cast of a weight that autocast keeps is used again after the segment, whose graph is cut off, and its gradient
/// would be lost. So a segment keeps none, and uses none of others.
class NoKeptCasts {
 public:
  NoKeptCasts() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoKeptCasts() { at::autocast::set_autocast_cache_enabled(before_); }
  NoKeptCasts(const NoKeptCasts&) = delete;
  NoKeptCasts& operator=(const NoKeptCasts&) = delete;

 private:
  bool before_;
};

// The segment's own graph

// Gradients leave the segment here.
struct Sink final : Node {
  variable_list apply(variable_list&&) override { return {}; }
  std::string name() const override { return "CheckpointSink"; }
};

/// The graph of one run of a segment.
struct Graph {
  variable_list outputs;           ///< with their history
  variable_list leaves;            ///< where that history begins: copies of the inputs
  uint64_t start = 0;              ///< nodes with lower numbers are older than the segment
  edge_list captured;              ///< edges that led out of the segment
  std::vector<NodePointer> sinks;  ///< what took their place

  int64_t find(const Edge& edge) const {
    const auto same = std::find_if(captured.begin(), captured.end(), [&](const Edge& other) {
      return other.function == edge.function && other.input_nr == edge.input_nr;
    });
    return same == captured.end() ? -1 : same - captured.begin();
  }

  /// Redirects every edge from the segment to something older into a sink.
  void cut_off() {
    std::unordered_set<const Node*> visited, inside_leaves;
    std::vector<NodePointer> waiting;
    for (const at::Tensor& leaf : leaves) {
      if (leaf.requires_grad()) inside_leaves.insert(impl::grad_accumulator(leaf).get());
    }
    for (const NodePointer& sink : sinks) inside_leaves.insert(sink.get());
    const auto visit = [&](const NodePointer& node) {
      if (visited.insert(node.get()).second) waiting.push_back(node);
    };
    for (const at::Tensor& output : outputs) {
      if (output.grad_fn()) visit(output.grad_fn());
    }
    while (!waiting.empty()) {
      const NodePointer node = std::move(waiting.back());
      waiting.pop_back();
      for (Edge& edge : node->next_edges()) {
        if (!edge.function || inside_leaves.count(edge.function.get())) continue;
        const Node& next = *edge.function;
        const bool outside = dynamic_cast<const torch::autograd::AccumulateGrad*>(&next) != nullptr ||
                             next.thread_id() != at::RecordFunction::currentThreadId() || next.sequence_nr() < start;
        if (!outside) {
          visit(edge.function);
          continue;
        }
        int64_t index = find(edge);
        if (index < 0) {
          index = static_cast<int64_t>(captured.size());
          captured.push_back(edge);
          sinks.push_back(make_node<Sink>());
          const auto& expected = next.input_metadata(edge.input_nr);
          sinks.back()->add_input_metadata(expected.options(), expected.shape_as_dim_vector(),
                                           expected.is_tensor_subclass(), expected.is_nested_tensor(),
                                           expected.grad_dtype());
          inside_leaves.insert(sinks.back().get());
        }
        edge = Edge(sinks[index], 0);
      }
    }
  }
};

// Runs the segment on copies of the inputs.
Graph record(const Segment& segment, const variable_list& inputs) {
  const c10::AutoGradMode recording(true);
  Graph graph;
  for (const at::Tensor& input : inputs) {
    graph.leaves.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad()) : input);
  }
  graph.start = at::sequence_number::peek();
  {
    const NoKeptCasts casts_of_its_own;
    const Substitutes leaves(graph.leaves, inputs);
    graph.outputs = segment(graph.leaves);
  }
  for (at::Tensor& output : graph.outputs) {
    // A tensor that is handed through has no node of the segment yet.
    if (output.defined() && output.requires_grad()) output = at::alias(output);
  }
  graph.cut_off();
  return graph;
}

// Its place in the program's graph

/// Results of a graph as results of one node, whose backward takes `make()`'s graph. `leaves`: edges to what the
/// graph's leaves stand for.
variable_list join(const Graph& graph, std::function<Graph()> make, edge_list leaves, const edge_list& captured_edges);

struct SegmentNode final : Node {
  SegmentNode(std::function<Graph()> make, edge_list captured) : make(std::move(make)), captured(std::move(captured)) {}

  std::string name() const override { return "CheckpointBackward"; }
  void release_variables() override { make = nullptr; }

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(make != nullptr, "checkpoint: backward a second time through a segment whose graph was freed",
                "\n  fix   give retain_graph = true to the first backward");
    const Graph graph = make();
    const bool create_graph = c10::GradMode::is_enabled();
    edge_list roots, required;
    variable_list given(grads.size()), root_grads;
    size_t next = 0;
    for (const at::Tensor& output : graph.outputs) {
      if (!output.defined() || !output.requires_grad()) continue;
      const size_t i = next++;
      if (!grads.at(i).defined()) continue;
      given[i] = create_graph ? grads[i].detach().requires_grad_(grads[i].requires_grad()) : grads[i];
      roots.push_back(impl::gradient_edge(output));
      root_grads.push_back(given[i]);
    }
    variable_list results(num_outputs());
    if (roots.empty()) return results;
    // Each required gradient goes to a leaf, or to what was captured in the first run.
    std::vector<size_t> places;
    for (size_t i = 0; i < graph.leaves.size(); ++i) {
      if (!graph.leaves[i].defined() || !graph.leaves[i].requires_grad()) continue;
      required.push_back(impl::gradient_edge(graph.leaves[i]));
      places.push_back(i);
    }
    for (size_t i = 0; i < graph.captured.size(); ++i) {
      const auto same = std::find_if(captured.begin(), captured.end(), [&](const Edge& edge) {
        return edge.function == graph.captured[i].function && edge.input_nr == graph.captured[i].input_nr;
      });
      TORCH_CHECK_VALUE(same != captured.end(), "checkpoint: the segment used other tensors when it was run again",
                        "\n  fix   let the segment depend on its inputs and on tensors that stay the same alone");
      required.emplace_back(graph.sinks[i], 0);
      places.push_back(graph.leaves.size() + static_cast<size_t>(same - captured.begin()));
    }
    variable_list found = torch::autograd::Engine::get_default_engine().execute(
        roots, root_grads, /*keep_graph=*/create_graph, create_graph, /*accumulate_grad=*/false, required);
    if (create_graph) found = differentiable(graph, given, grads, std::move(found));
    for (size_t i = 0; i < found.size(); ++i) results[places[i]] = std::move(found[i]);
    return results;
  }

  // The gradients depend on the inputs and on the gradients given, through the graph at hand, which is kept for that.
  variable_list differentiable(const Graph& graph, const variable_list& given, const variable_list& grads,
                               variable_list found) {
    Graph second = graph;
    second.outputs = std::move(found);
    for (at::Tensor& output : second.outputs) {
      if (output.defined() && output.requires_grad()) output = at::alias(output);
    }
    edge_list edges(next_edges().begin(), next_edges().begin() + static_cast<std::ptrdiff_t>(graph.leaves.size()));
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].defined()) continue;
      second.leaves.push_back(given[i]);
      edges.push_back(grads[i].requires_grad() ? impl::gradient_edge(grads[i]) : Edge());
    }
    second.cut_off();
    edge_list captured_edges(next_edges().begin() + static_cast<std::ptrdiff_t>(graph.leaves.size()),
                             next_edges().end());
    captured_edges.resize(std::max(captured_edges.size(), second.captured.size()));
    // In the order of the second graph, whose list the next node compares with.
    for (size_t i = 0; i < second.captured.size(); ++i) {
      const auto same = std::find_if(captured.begin(), captured.end(), [&](const Edge& edge) {
        return edge.function == second.captured[i].function && edge.input_nr == second.captured[i].input_nr;
      });
      captured_edges[i] = same == captured.end()
                              ? second.captured[i]
                              : next_edge(graph.leaves.size() + static_cast<size_t>(same - captured.begin()));
    }
    captured_edges.resize(second.captured.size());
    return join(
        second, [second] { return second; }, std::move(edges), captured_edges);
  }

  std::function<Graph()> make;
  edge_list captured;  // as the first run found them; the edges of this node may have been redirected since
};

variable_list join(const Graph& graph, std::function<Graph()> make, edge_list leaves, const edge_list& captured_edges) {
  variable_list results;
  for (const at::Tensor& output : graph.outputs) results.push_back(output.defined() ? output.detach() : output);
  const bool any = std::any_of(graph.outputs.begin(), graph.outputs.end(),
                               [](const at::Tensor& output) { return output.defined() && output.requires_grad(); });
  if (!any) return results;
  const NodePointer node = make_node<SegmentNode>(std::move(make), graph.captured);
  leaves.insert(leaves.end(), captured_edges.begin(), captured_edges.end());
  node->set_next_edges(std::move(leaves));
  for (size_t i = 0; i < results.size(); ++i) {
    if (!graph.outputs[i].defined() || !graph.outputs[i].requires_grad()) continue;
    impl::set_gradient_edge(results[i], Edge(node, node->add_input_metadata(results[i])));
  }
  return results;
}

}  // namespace

std::vector<at::Tensor> checkpoint(const Segment& segment, const std::vector<at::Tensor>& inputs) {
  if (!c10::GradMode::is_enabled()) return segment(inputs);
  const Conditions conditions;
  const Graph graph = record(segment, inputs);
  auto saved = std::make_shared<std::vector<torch::autograd::SavedVariable>>();
  edge_list edges;
  for (const at::Tensor& input : inputs) {
    saved->emplace_back(input, /*is_output=*/false);
    edges.push_back(input.defined() && input.requires_grad() ? impl::gradient_edge(input) : Edge());
  }
  const auto again = [segment, saved, conditions] {
    variable_list unpacked;
    for (const auto& one : *saved) unpacked.push_back(one.unpack());
    const Under as_before(conditions);
    return record(segment, unpacked);
  };
  return join(graph, again, std::move(edges), graph.captured);
}

}  // namespace moonhalo
