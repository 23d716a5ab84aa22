// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/scripting/embed/moonhalo_c.h"

namespace moonhalo::scripting {

/// A failure with the status that the caller gets.
class HostError : public std::runtime_error {
 public:
  HostError(mh_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  mh_status status() const { return status_; }

 private:
  mh_status status_;
};

/// Says how a call ended on one rank, or on all.
struct Outcome {
  mh_status status = MH_OK;
  std::string text = {};
  bool secondary = false;  ///< the rank only noticed that another one had failed
  bool identical = true;   ///< all ranks ended in the same way
  bool repeats = false;    ///< a rank before this one returns the same text
  bool agreed = true;      ///< the ranks communicated and have each other's outcome
};

/// Runs `work`; every exception becomes an outcome.
Outcome attempt(const std::function<void()>& work);

/// The error of ranks that were found to wait for each other, in collectives of the script's or in agree(): of all
/// ranks, which need not communicate for it. Nothing if they were not, since it was asked last.
std::optional<Outcome> deadlocked_ranks(Communicator& control);

/// Returns what all ranks of `control` return for the call `what` that ended as `mine` on this one: the first failure
/// that does not follow from another's. Collective over `control`; nothing that it sends is counted.
Outcome agree(Communicator& control, const std::string& what, const Outcome& mine);

}  // namespace moonhalo::scripting
