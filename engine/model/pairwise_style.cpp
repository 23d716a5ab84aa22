// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/pairwise_style.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

namespace moonhalo {
namespace {

using Kind = ParallelStyle::Kind;

constexpr const char* kOpName = "parallelize_module: ";

std::string quoted_name(const ModuleFacts& module) {
  const std::string kind = module.kinds.empty() ? "module" : module.kinds.front();
  return module.name.empty() ? "the root, a " + kind : "'" + module.name + "', a " + kind;
}

bool is_linear(const ModuleFacts& module) {
  return std::find(module.kinds.begin(), module.kinds.end(), "Linear") != module.kinds.end();
}

class LayerPairs {
 public:
  LayerPairs(std::vector<std::optional<ParallelStyle>>& styles, const std::vector<ModuleFacts>& modules)
      : styles_(styles), given_(styles), modules_(modules), children_(modules.size()) {
    std::map<std::string, size_t> number_of;
    for (size_t i = 0; i < modules.size(); ++i) number_of.emplace(modules[i].name, i);
    for (size_t i = 0; i < modules.size(); ++i) {
      std::string name = modules[i].name;
      while (!name.empty()) {
        const size_t dot = name.rfind('.');
        name.resize(dot == std::string::npos ? 0 : dot);
        const auto parent = number_of.find(name);
        if (parent == number_of.end()) continue;
        children_[parent->second].push_back(i);
        break;
      }
    }
  }

  void run() {
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!is_pairwise(i)) continue;
      styles_[i].reset();
      TORCH_CHECK_VALUE(pair_inside(i, *given_[i]) > 0 || has_pairwise_inside(i), kOpName,
                        "PairwiseParallel finds no two linear layers that belong together in ",
                        quoted_name(modules_[i]), "\n  have  ", linear_layers_in(i),
                        "\n  fix   name the module whose own layers are a pair, or give each layer ColwiseParallel or "
                        "RowwiseParallel");
    }
  }

 private:
  bool is_pairwise(size_t i) const { return given_[i] && given_[i]->kind == Kind::kPairwise; }

  /// Returns the number of pairs.
  size_t pair_inside(size_t parent, const ParallelStyle& pairwise) {
    const std::vector<size_t>& children = children_[parent];
    std::vector<size_t> layers;
    std::copy_if(children.begin(), children.end(), std::back_inserter(layers),
                 [&](size_t child) { return is_linear(modules_[child]); });
    if (layers.size() >= 2) return pair_up(parent, layers, pairwise);
    size_t pairs = 0;
    for (const size_t child : children) {
      if (!is_pairwise(child)) pairs += pair_inside(child, pairwise);
    }
    return pairs;
  }

  size_t pair_up(size_t parent, const std::vector<size_t>& layers, const ParallelStyle& pairwise) {
    const size_t pairs = layers.size() / 2;
    for (size_t i = 0; i < 2 * pairs; ++i) {
      const bool first = i == 0, second = i % 2 == 1, last = i == 2 * pairs - 1;
      ParallelStyle style{.kind = second ? Kind::kRowwise : Kind::kColwise};
      if (first) style.input_layouts = pairwise.input_layouts;
      if (last) style.output_layouts = pairwise.output_layouts;
      style.use_local_output = last && pairwise.use_local_output.value_or(true);
      TORCH_CHECK_VALUE(!given_[layers[i]], kOpName, "'", modules_[layers[i]].name, "' has the style ",
                        name(given_[layers[i]]->kind), ", and PairwiseParallel of ", quoted_name(modules_[parent]),
                        ", gives it ", name(style.kind), "\n  fix   leave one of them out of the plan");
      styles_[layers[i]] = std::move(style);
    }
    return pairs;
  }

  bool has_pairwise_inside(size_t parent) const {
    return std::any_of(children_[parent].begin(), children_[parent].end(),
                       [&](size_t child) { return is_pairwise(child) || has_pairwise_inside(child); });
  }

  void add_linear_layers(size_t parent, std::vector<std::string>& names) const {
    if (is_linear(modules_[parent])) names.push_back("'" + modules_[parent].name + "'");
    for (const size_t child : children_[parent]) add_linear_layers(child, names);
  }
  std::string linear_layers_in(size_t parent) const {
    constexpr size_t kShown = 12;
    std::vector<std::string> names;
    add_linear_layers(parent, names);
    if (names.empty()) return "no linear layer";
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i == 0 ? "" : ", ") + names[i];
    return names.size() > kShown ? text + ", ..." : text;
  }

  std::vector<std::optional<ParallelStyle>>& styles_;
  const std::vector<std::optional<ParallelStyle>> given_;
  const std::vector<ModuleFacts>& modules_;
  std::vector<std::vector<size_t>> children_;  ///< by module, in order
};

}  // namespace

void pair_layers(std::vector<std::optional<ParallelStyle>>& styles, const std::vector<ModuleFacts>& modules) {
  LayerPairs(styles, modules).run();
}

}  // namespace moonhalo
