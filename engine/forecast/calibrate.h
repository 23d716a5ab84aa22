// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/forecast/machine.h"

namespace moonhalo {

/// Is called with what is measured next, and once with "not quiet: ..." as soon as times show it.
using CalibrateProgress = std::function<void(const std::string&)>;

/// False if work took at most 0.9 of the time beside neighbours that it took alone, which is noise. Not collective.
bool neighbours_are_plausible(const Machine& machine);
/// The seconds that a core keeps one of several threads, or 0 if they are not known.
struct MeasuredSlice {
  double seconds = 0;
  bool stable = true;
};
/// The slice from `gaps`, seconds in which busy threads had no core: their median, where each counts by its length, so
/// that short interrupts of many threads do not outvote the slices of a few. At most 1 s; 0 of fewer than 3 gaps. Not
/// stable if the quartiles, by length, differ by more than a factor of 2: other programs had slices, too.
/// Not collective.
MeasuredSlice slice_of_gaps(std::vector<double> gaps);
/// Measures this host in about `seconds`: its memory, the rates of LibTorch's kernels on one core, how much slower they
/// are beside copies of themselves, the time slice of a core, and collectives of rank threads, of at most as many as
/// there are cores and of one more. Each time is the least of repeated ones, five and five more until these agree
/// within 3 %; where the time for that runs out, or the slice is not stable, Machine::quiet is false. Of more threads
/// than cores it is the median, and need not be stable. Not collective: it starts ranks of its own.
Machine calibrate_host(double seconds, const CalibrateProgress& progress);

/// Measures the collectives of `world` in about `seconds` and puts them into Machine::verbs, under its backend and
/// number of ranks, in place of those that are there. Collective; all ranks get the same table.
void calibrate_verbs(Communicator& world, double seconds, Machine& machine);

}  // namespace moonhalo
