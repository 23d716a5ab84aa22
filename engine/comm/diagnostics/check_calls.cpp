// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstdlib>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/engine/comm/stats_pause.h"

namespace moonhalo {

std::optional<bool> check_calls_from_environment() {
  const char* text = std::getenv("MOONHALO_CHECK_CALLS");
  const std::string given = text == nullptr ? "" : text;
  TORCH_CHECK_VALUE(given.empty() || given == "0" || given == "1",
                    "MOONHALO_CHECK_CALLS: neither 0 nor 1\n  have  MOONHALO_CHECK_CALLS=", given,
                    "\n  fix   set it to 0 so that ranks do not compare their calls, or unset it");
  if (given.empty()) return std::nullopt;
  return given == "1";
}

void compare_calls(Communicator& group, const CollectiveCall& call, const std::vector<Message>& sends,
                   const std::vector<Message>& receives) {
  const ScopedStatsPause check;
  const int size = group.size();
  CollectiveCall mine = call;
  mine.mark = CallMark::now();
  // A tag, then bytes to each rank, then bytes from each.
  const int64_t words = 1 + 2 * size;
  at::Tensor own = at::empty({words}, at::kLong).zero_(), all = at::empty({size, words}, at::kLong).view({-1});
  auto* const word = own.mutable_data_ptr<int64_t>();
  uint64_t tag = fingerprint_of(at::IntArrayRef({mine.kind, mine.op, mine.dtype, mine.root, mine.elements}));
  tag = combine_fingerprint(combine_fingerprint(tag, fingerprint_of(mine.counts)), mine.mark.tag);
  word[0] = static_cast<int64_t>(tag);
  for (const Message& message : sends) word[1 + message.peer] += message.nbytes();
  for (const Message& message : receives) word[1 + size + message.peer] += message.nbytes();
  for (int r = 0; r < size && !mine.send_counts.empty(); ++r) {
    word[1 + r] = mine.send_counts[r];
    word[1 + size + r] = mine.receive_counts[r];
  }
  group.all_gather(own, std::vector<int64_t>(size, words), all);
  const auto* const of_all = all.const_data_ptr<int64_t>();
  const auto refuse_if = [&](bool different, int rank, int other) {
    if (!different) return;
    const std::vector<std::string> texts = group.all_gather_strings(mine.describe());
    TORCH_CHECK_VALUE(false, different_calls(mine.verb(), rank, texts[rank], other, texts[other]));
  };
  for (int r = 1; r < size; ++r) refuse_if(of_all[r * words] != of_all[0], 0, r);
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const int64_t sent = of_all[from * words + 1 + to], expected = of_all[to * words + 1 + size + from];
      if (sent == expected || (mine.kind == CommStats::kAllToAll && from == to)) continue;
      const char* const unit = mine.kind == CommStats::kAllToAll ? " elements" : " bytes";
      TORCH_CHECK_VALUE(false, mine.verb(), ": rank ", from, " of this group sends ", sent, unit, " to rank ", to,
                        ", which expects ", expected, "\n  have  ", mine.describe(), divergence_remedy());
    }
  }
}

}  // namespace moonhalo
