// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/output_cut.h"

#include <ATen/WrapDimUtils.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

const std::vector<std::string> kNames = {"geometry", "keep", "rebalance"};

}  // namespace

const char* name(OutputCut cut) { return kNames[static_cast<size_t>(cut)].c_str(); }

OutputCut parse_output_cut(const std::string& text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<OutputCut>(i);
  }
  TORCH_CHECK_VALUE(false, "set_output_cut: unknown policy '", text, "'", did_you_mean(text, kNames),
                    "\n  have  geometry, keep, rebalance\n  fix   name one of them");
}

OutputCut set_output_cut(OutputCut cut, Communicator* world) {
  if (world != nullptr) check_same_on_all_ranks(*world, "set_output_cut", "policies", name(cut));
  return std::exchange(base_context->settings.output_cut, cut);
}

OutputCut output_cut() { return settings().output_cut; }

at::Tensor rebalance(const at::Tensor& tensor, std::optional<int64_t> dim) {
  if (dim) dim = at::maybe_wrap_dim(*dim, tensor.dim());
  if (!is_shard_tensor(tensor)) return tensor;
  Layout layout = spec(tensor)->layout();
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    Cut& cut = layout.cuts[d];
    if (cut && (!dim || *dim == d))
      cut.sizes = balanced_sizes(layout.global_shape[d], static_cast<int64_t>(cut.sizes.size()));
  }
  return redistribute(tensor, intern(std::move(layout)));
}

}  // namespace moonhalo
