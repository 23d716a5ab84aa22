// SPDX-License-Identifier: Apache-2.0
#include "engine/output_cut.h"

#include <ATen/WrapDimUtils.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "engine/communicator.h"
#include "engine/shard_tensor.h"

namespace moonhalo {
namespace {

thread_local OutputCut cut_of_thread = OutputCut::kGeometry;

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
  // Of a fake communicator nobody else is there to differ.
  if (world != nullptr && world->size() > 1 && std::string(world->backend()) != "fake") {
    const std::vector<std::string> all = world->all_gather_strings(name(cut));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      TORCH_CHECK_VALUE(all[rank] == all[0], "set_output_cut: ranks 0 and ", rank, " want different policies\n  have  rank 0: ", all[0],
                        "; rank ", rank, ": ", all[rank], "\n  fix   give every rank the same");
    }
  }
  return std::exchange(cut_of_thread, cut);
}

OutputCut output_cut() { return cut_of_thread; }

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
