// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/tensor/box_set.h"

namespace moonhalo::scripting {

/// Messages between the ranks of a session that solve and its last ranks, which train. One request is under way at a
/// time: a snapshot of fields that solvers cut as they like goes to the trainers, cut into slabs there, and new weights
/// come back. Solvers wait for no trainer but in finish(), and the first time that fields of some cuts are sent.
///
///     solvers   request(u, w) . . . take -> false . . . take -> true  request(u, w)  . . .  finish
///     trainers  next -> u      train      reply(w)                    next -> u  train  reply(w)  next -> nothing
class TrainerLink {
 public:
  /// The last `trainers` ranks of `all` train. Collective over `all`, which serves nothing else from now on.
  TrainerLink(CommunicatorPtr all, int trainers);
  /// Says that it is over, where that was not said. Collective over `all` unless the link has ended.
  ~TrainerLink();
  TrainerLink(const TrainerLink&) = delete;

  /// Nothing is said when it ends, because the ranks have diverged.
  void abandon() { ended_ = "the session failed"; }

  bool trains() const { return part_rank_ >= 0; }
  int trainers() const { return trainers_; }

  // ---- On solvers, collective over them: `solvers` are their ranks, in the order that they have in `all`. ----------

  bool under_way() const { return reply_ != nullptr; }
  /// Sends `fields`, ShardTensors over the solvers, as they are now, and `numbers`. `weights` say what will come back.
  void request(Communicator& solvers, const std::vector<at::Tensor>& fields, std::span<const double> numbers,
               const std::vector<at::Tensor>& weights);
  /// Copies what the trainers have sent back into `weights`, once it has reached all solvers; true if it did so.
  /// An error of theirs is an error here, on all solvers in the same way, and ends the link.
  bool take(Communicator& solvers, const std::vector<at::Tensor>& weights);
  /// Waits for what is under way, takes it as take() does, and ends the link.
  bool finish(Communicator& solvers, const std::vector<at::Tensor>& weights);

  // ---- On trainers, collective over them. -------------------------------------------------------------------------

  struct Request {
    std::vector<at::Tensor> slabs;            ///< this trainer's rows of each field, plain
    std::vector<std::vector<int64_t>> sizes;  ///< rows of each trainer, by field
    std::vector<double> numbers;
  };
  /// Waits for a request of `fields` fields; nothing when the solvers have ended the link.
  std::optional<Request> next(size_t fields);
  void reply(const std::vector<at::Tensor>& weights);
  /// In place of a reply: what went wrong. `secondary`: because of another trainer. Ends the link, and does not wait,
  /// because the other trainers may wait for this one.
  void fail(const std::vector<at::Tensor>& weights, const std::string& text, bool secondary);

 private:
  struct Header;
  void plan(const std::vector<at::Tensor>& fields, size_t count);
  void send_header(const Header& header);
  void check_open(const char* what) const;
  void send_reply(const at::Tensor& bytes);
  Header receive_header();
  void disconnect_from_trainers();
  [[noreturn]] void throw_failure(Communicator& solvers);

  CommunicatorPtr all_;
  int solvers_, trainers_, part_rank_ = -1;                  // among the trainers
  MeshPtr mesh_;                                             // of all ranks
  std::vector<std::pair<SpecPtr, at::ScalarType>> planned_;  // of the fields that sets_ were made for
  std::vector<BoxSet> sets_;
  std::vector<WorkPtr> sends_;  // of the request under way
  std::vector<BoxSet::Reading> readings_;
  WorkPtr reply_;
  at::Tensor arriving_;  // the reply's bytes
  std::string ended_;    // why nothing can be sent any more
};

}  // namespace moonhalo::scripting
