// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/remedies.h"

#include <atomic>
#include <iterator>
#include <string_view>

namespace moonhalo {

namespace {

/// One remedy in three languages.
struct Words {
  std::string_view cpp, lua, python;
};

constexpr std::string_view kFix = "\n  fix   ";

/// In the order of Remedy.
constexpr Words kWords[] = {
    {"initialise it identically on all ranks: one mh::manual_seed for all before weights are made, one "
     "mh::distribute_tensor of "
     "what one rank read; a rank's block of a larger tensor becomes a part by mh::from_local. "
     "mh::set_check_replicated(false) switches this check off",
     "initialise it identically on all ranks: one mh.manual_seed for all before weights are made, math.randomseed with "
     "one seed, "
     "one mh.distribute_tensor of what one rank read; a rank's block of a larger tensor becomes a part by "
     "mh.from_local. mh.check_replicated(false) switches this check off",
     "initialise it identically on all ranks: one torch.manual_seed for all before weights are made, one "
     "mh.distribute_tensor of "
     "what one rank read; a rank's block of a larger tensor becomes a part by mh.from_local"},
    {"the same mh::manual_seed on all ranks, and the same random operators in the same order since. "
     "mh::set_check_replicated(false) switches this check off",
     "the same mh.manual_seed on all ranks, and the same random operators in the same order since. "
     "mh.check_replicated(false) switches this check off",
     "the same mh.manual_seed on all ranks, and the same random operators in the same order since"},
    {"every rank makes the same calls in the same order, with the same shapes, dtypes and numbers. Look for a branch "
     "on the rank, an order that differs (of a hash table), a random number, the time or a file that differs",
     "every rank makes the same calls in the same order, with the same shapes, dtypes and numbers. Look for a branch "
     "on the rank, an order that differs (`next` over a table), a random number, the time or a file that differs; "
     "mh.op_trace, printed on every rank, shows the first call that differs",
     "every rank makes the same calls in the same order, with the same shapes, dtypes and numbers. Look for a branch "
     "on the rank, an order that differs (of a set), a random number, the time or a file that differs"},
    {"mh::constant_of_samples(t, mesh) if it is one tensor for all samples, mh::local_batch(t, mesh) if its rows are "
     "this rank's own samples",
     "mh.constant(t) if it is one tensor for all samples, mh.local_batch(t) if its rows are this rank's own samples",
     "mh.from_local(t, mesh, [mh.Replicate()]) if it is one tensor for all samples, with [mh.Shard(0)] if its rows are "
     "this rank's own samples"},
    {"if all ranks have the same one, make it a parameter before it is used (mh::note_parameters); if it is this "
     "rank's own, mh::local_batch(t, mesh), or mh::from_local of it first and then mh::to_local",
     "if all ranks have the same one, make it a parameter before it is used (mh.nn.Parameter); if it is this rank's "
     "own, mh.local_batch(t), or mh.from_local of it first and then x:to_local()",
     "if all ranks have the same one, make it a parameter before it is used (torch.nn.Parameter); if it is this rank's "
     "own, mh.from_local of it first and then mh.to_local"},
    {"if all ranks have the same one, make it a parameter before it is used (mh::note_parameters); if it is this "
     "rank's own, make it a ShardTensor first (mh::from_local)",
     "if all ranks have the same one, make it a parameter before it is used (mh.nn.Parameter); if it is this rank's "
     "own, make it a ShardTensor first (mh.from_local)",
     "if all ranks have the same one, make it a parameter before it is used (torch.nn.Parameter); if it is this rank's "
     "own, make it a ShardTensor first (mh.from_local)"},
    {"compute it again from the parameters for each of the two, or give what it is combined with as mh::local_batch "
     "makes them",
     "compute it again from the parameters for each of the two, or give what it is combined with as mh.local_batch "
     "makes them",
     "compute it again from the parameters for each of the two, or give what it is combined with as mh.from_local "
     "makes them"},
    {"give it to a module as mh::constant_of_samples(t, mesh), or make each rank's samples of it first",
     "give it to a module as mh.constant(t), or make each rank's samples of it first",
     "give it to a module as a replicated ShardTensor, or make each rank's samples of it first"},
    {"make it a parameter of that stage (the last one may compute the loss), or give t.detach(); mh::local_batch(t, "
     "mesh) if it is this rank's own data",
     "make it a parameter of that stage (the last one may compute the loss), or give t:detach(); mh.local_batch(t) if "
     "it is this rank's own data",
     "make it a parameter of that stage (the last one may compute the loss), or give t.detach(); mh.from_local if it "
     "is this rank's own data"},
    {"give the path that was saved, as it is from the folder where the program runs",
     "give the path of mh.checkpoint.save, from the folder where the program runs; mh.checkpoint.latest(folder) finds "
     "the last one",
     "give the path of mh.save_checkpoint, from the folder where the program runs"},
};

std::atomic<bool> python = false;

}  // namespace

void speak_python() { python = true; }

std::string fix(Remedy remedy) {
  const Words& words = kWords[static_cast<size_t>(remedy)];
  return std::string(kFix).append(python ? words.python : words.cpp);
}

std::string fixes_in_lua(std::string message) {
  for (const Words& words : kWords) {
    if (const size_t at = message.find(words.cpp); at != std::string::npos)
      message.replace(at, words.cpp.size(), words.lua);
  }
  return message;
}

}  // namespace moonhalo
