// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/samplers/base.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

/// Orders of samples, the same on all ranks: a permutation by seed and epoch, which needs no memory and no messages. So
/// every rank has every epoch's order, from any place on, and any number of ranks can resume it. They are samplers of
/// LibTorch, for torch::data::make_data_loader, and give what mh.data of Lua gives. Copies share one place: the program
/// still has the sampler that it has given to a loader. They have no lock, so each rank (a thread) makes its own.
/// Include it as <moonhalo/data.h>. Not collective. Functions throw ValueError for numbers that are out of range.
namespace moonhalo::data {

/// Settings of a Sampler.
struct SamplerOptions {
  int64_t batch = 1;       ///< samples of a batch; a data loader of LibTorch gives its own
  bool shuffle = true;     ///< false keeps the order of the samples
  int64_t seed = 0;        ///< of the orders
  bool drop_last = false;  ///< leaves out a smaller last batch
};

/// Where an order of samples is, without ranks: the fields of state_dict() of Lua. Save them as numbers of a checkpoint
/// (io::save_checkpoint), or the sampler by torch::save.
struct SamplerState : SamplerOptions {
  int64_t size = 0;   ///< number of samples
  int64_t epoch = 0;  ///< from 0
  int64_t next = 0;   ///< samples of the epoch that were given

  /// Calls visit(name, field) for each field.
  template <class State, class Visit>
  static void visit_fields(State& state, const Visit& visit) {
    visit("size", state.size);
    visit("batch", state.batch);
    visit("seed", state.seed);
    visit("epoch", state.epoch);
    visit("next", state.next);
    visit("shuffle", state.shuffle);
    visit("drop_last", state.drop_last);
  }

  /// The number of batches of an epoch.
  int64_t num_batches() const;
  /// The samples of the next batch, int64 [batch], on the CPU; nothing at the end of the epoch, once.
  std::optional<at::Tensor> next_batch();
  /// Takes seed, epoch and place of another state; the batch size may be another. ValueError for another number of
  /// samples, another `shuffle`, or a place outside of the samples.
  void load(const SamplerState& saved);
  /// ValueError unless all numbers are in range, and an epoch has a batch.
  void check() const;
};

/// Batches of global indices, the same on all ranks, in another order each epoch.
///
///     mh::data::Sampler sampler(1000, {.batch = 64, .seed = 1});
///     while (auto index = sampler.next_batch()) train(images.index_select(0, *index));  // the rest of an epoch
///
///     auto loader = torch::data::make_data_loader(dataset, sampler, 64);
///     for (auto& batch : *loader) { ...; state = sampler.state_dict(); }                // the rest of an epoch
///
/// A loader with workers is max_jobs batches ahead of the program: save the state between epochs there. To resume, set
/// drop_last of the sampler, not of the loader: else a loop that has only a smaller last batch left is empty.
class Sampler : public torch::data::samplers::Sampler<> {
 public:
  explicit Sampler(int64_t size, const SamplerOptions& options = {});

  /// The number of batches of an epoch.
  int64_t num_batches() const;
  /// The samples of the next batch, int64 [batch], on the CPU. Nothing at the end of the epoch, once: the next call
  /// begins another epoch.
  std::optional<at::Tensor> next_batch();
  SamplerState state_dict() const;
  /// As SamplerState::load.
  void load_state_dict(const SamplerState& state);

  /// For LibTorch's loaders, which call it before each loop: goes on with the rest of an epoch, or begins one. Another
  /// size begins the epoch again.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// The indices of the next batch, of `batch_size` samples from now on. Nothing at the end of the epoch, until
  /// reset().
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// Writes, or loads, the fields of state_dict() by their names.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Place;
  std::shared_ptr<Place> place_;
};

/// Settings of a DistributedSampler.
struct DistributedSamplerOptions {
  bool shuffle = true;     ///< false keeps the order of the samples
  int64_t seed = 0;        ///< of the orders
  bool drop_last = false;  ///< leaves out the tail; else the first samples come again, so that all have as many
};

/// The samples of one of several replicas, as PyTorch's. Ranks that need the same samples give the number of groups and
/// that of their group.
///
///     mh::data::DistributedSampler sampler(1000, world.size(), world.rank(), {.seed = 1});
///     auto loader = torch::data::make_data_loader(dataset, sampler, 64);
///     for (int64_t epoch = sampler.epoch(); epoch < 10; ++epoch) {  // that of load()
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) { ... }
///     }
///
/// A loader with workers is max_jobs batches ahead of the program: save the sampler between epochs there.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  DistributedSampler(int64_t size, int64_t num_replicas, int64_t rank, const DistributedSamplerOptions& options = {});

  /// The number of samples of a replica.
  int64_t num_samples() const;
  /// The samples of this replica, int64 [num_samples], on the CPU.
  at::Tensor indices() const;
  /// Another epoch has another order, from its first sample on.
  void set_epoch(int64_t epoch);
  int64_t epoch() const;

  /// For LibTorch's loaders, which call it before each loop: goes on with the rest of the samples, or begins them
  /// again. Another size begins again, too. After load() at the end of an epoch the first loop is empty.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// The indices of the next `batch_size` samples of this replica. Nothing at the end, until reset().
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// Writes, or loads, size, num_replicas, shuffle, drop_last, seed, epoch and next. ValueError where a saved value of
  /// the first four is another one: a place among the samples of a replica holds for as many replicas.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Place;
  std::shared_ptr<Place> place_;
};

}  // namespace moonhalo::data
