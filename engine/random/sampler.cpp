// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/random/sampler.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/random/permutation.h"

namespace moonhalo::data {

namespace {

void check_count(const char* op, const char* name, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, op, ": ", name, " is ", value, ", expected an integer of at least ", least);
}

const char* word(bool value) { return value ? "true" : "false"; }

/// The samples at place(0) to place(count - 1) of an epoch.
template <class PlaceOf>
at::Tensor samples_at(int64_t count, bool shuffle, int64_t size, int64_t seed, int64_t epoch, const PlaceOf& place) {
  // Numbers for the host: no mode that captures factories or leaves out memory applies.
  at::Tensor samples = at::detail::empty_cpu({count}, at::TensorOptions(at::kLong));
  auto* values = samples.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) values[i] = place(i);
  if (shuffle) {
    const Permutation order(size, static_cast<uint64_t>(seed), static_cast<uint64_t>(epoch));
    std::transform(values, values + count, values, order);
  }
  return samples;
}

std::vector<size_t> indices_of(const at::Tensor& samples) {
  const auto* values = samples.const_data_ptr<int64_t>();
  return {values, values + samples.numel()};
}

template <class State>
void write_fields(torch::serialize::OutputArchive& archive, const State& state) {
  State::visit_fields(state, [&](const char* name, auto field) { archive.write(name, c10::IValue(field)); });
}

template <class State>
State read_fields(torch::serialize::InputArchive& archive, State state) {
  State::visit_fields(state, [&]<class Field>(const char* name, Field& field) {
    c10::IValue value;
    archive.read(name, value);
    field = value.to<Field>();
  });
  return state;
}

}  // namespace

// ---- SamplerState ---------------------------------------------------------------------------------------------------

void SamplerState::check() const {
  check_count("Sampler", "size", size, 1);
  check_count("Sampler", "batch", batch, 1);
  TORCH_CHECK_VALUE(!drop_last || batch <= size, "Sampler: drop_last leaves nothing of ", size,
                    " samples in batches of ", batch);
}

int64_t SamplerState::num_batches() const { return drop_last ? size / batch : (size - 1) / batch + 1; }

std::optional<at::Tensor> SamplerState::next_batch() {
  const int64_t first = next, count = std::min(batch, size - next);
  if (count <= 0 || (drop_last && count < batch)) {
    ++epoch;
    next = 0;
    return std::nullopt;
  }
  next += count;
  return samples_at(count, shuffle, size, seed, epoch, [first](int64_t i) { return first + i; });
}

void SamplerState::load(const SamplerState& saved) {
  const char* op = "Sampler: load_state_dict: ";
  TORCH_CHECK_VALUE(saved.size == size, op, "has ", saved.size, " samples, the data set ", size,
                    "\n  fix   load it with the data set that it was saved with, or begin a new order");
  TORCH_CHECK_VALUE(saved.shuffle == shuffle, op, "was saved with shuffle = ", word(saved.shuffle), ", this one has ",
                    word(shuffle));
  TORCH_CHECK_VALUE(saved.epoch >= 0 && saved.next >= 0 && saved.next <= size, op, "sample ", saved.next, " of epoch ",
                    saved.epoch, " is outside of ", size, " samples");
  seed = saved.seed;
  epoch = saved.epoch;
  next = saved.next;
}

// ---- Sampler --------------------------------------------------------------------------------------------------------

struct Sampler::Place {
  SamplerState state;
  bool asked = false;   // since reset()
  bool at_end = false;  // a loader may ask again after the last batch; until reset()
};

Sampler::Sampler(int64_t size, const SamplerOptions& options) : place_(std::make_shared<Place>()) {
  static_cast<SamplerOptions&>(place_->state) = options;
  place_->state.size = size;
  place_->state.check();
}

int64_t Sampler::num_batches() const { return place_->state.num_batches(); }
std::optional<at::Tensor> Sampler::next_batch() { return place_->state.next_batch(); }
SamplerState Sampler::state_dict() const { return place_->state; }

void Sampler::load_state_dict(const SamplerState& state) {
  place_->state.load(state);
  place_->asked = place_->at_end = false;
}

void Sampler::reset(std::optional<size_t> new_size) {
  SamplerState changed = place_->state;
  if (new_size && static_cast<int64_t>(*new_size) != changed.size) {
    changed.size = static_cast<int64_t>(*new_size);
    changed.next = 0;
    changed.check();
  }
  *place_ = {changed};
}

std::optional<std::vector<size_t>> Sampler::next(size_t batch_size) {
  if (place_->at_end) return std::nullopt;
  SamplerState changed = place_->state;
  changed.batch = static_cast<int64_t>(batch_size);
  changed.check();
  place_->state = changed;
  std::optional<at::Tensor> batch = next_batch();
  // The last batch was given, but its end not asked for before reset(): the loop would be empty.
  if (!batch && !place_->asked) batch = next_batch();
  place_->asked = true;
  place_->at_end = !batch;
  return batch ? std::optional(indices_of(*batch)) : std::nullopt;
}

void Sampler::save(torch::serialize::OutputArchive& archive) const { write_fields(archive, place_->state); }
void Sampler::load(torch::serialize::InputArchive& archive) { load_state_dict(read_fields(archive, SamplerState())); }

// ---- DistributedSampler ---------------------------------------------------------------------------------------------

struct DistributedSampler::Place : DistributedSamplerOptions {
  int64_t size, num_replicas, rank;
  int64_t epoch = 0, next = 0;
  bool loaded = false;  // until reset() or next(): an epoch saved at its end has no more samples

  template <class State, class Visit>
  static void visit_fields(State& state, const Visit& visit) {
    visit("size", state.size);
    visit("num_replicas", state.num_replicas);
    visit("seed", state.seed);
    visit("epoch", state.epoch);
    visit("next", state.next);
    visit("shuffle", state.shuffle);
    visit("drop_last", state.drop_last);
  }
  void check() const {
    const char* op = "DistributedSampler";
    check_count(op, "size of the data set", size, 1);
    check_count(op, "num_replicas", num_replicas, 1);
    check_count(op, "rank", rank, 0);
    TORCH_CHECK_VALUE(rank < num_replicas, op, ": rank ", rank, " of ", num_replicas,
                      " replicas\n  fix   ranks count from 0");
    TORCH_CHECK_VALUE(!drop_last || size >= num_replicas, op, ": drop_last leaves nothing of ", size, " samples for ",
                      num_replicas, " replicas");
  }
  int64_t count() const { return drop_last ? size / num_replicas : (size - 1) / num_replicas + 1; }
  at::Tensor samples(int64_t first, int64_t last) const {
    return samples_at(last - first, shuffle, size, seed, epoch,
                      [this, first](int64_t i) { return ((first + i) * num_replicas + rank) % size; });
  }
};

DistributedSampler::DistributedSampler(int64_t size, int64_t num_replicas, int64_t rank,
                                       const DistributedSamplerOptions& options)
    : place_(std::make_shared<Place>(Place{options, size, num_replicas, rank})) {
  place_->check();
}

int64_t DistributedSampler::num_samples() const { return place_->count(); }
at::Tensor DistributedSampler::indices() const { return place_->samples(0, num_samples()); }
int64_t DistributedSampler::epoch() const { return place_->epoch; }

void DistributedSampler::set_epoch(int64_t epoch) {
  check_count("DistributedSampler", "epoch", epoch, 0);
  if (epoch != place_->epoch) place_->next = 0;
  place_->epoch = epoch;
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  Place changed = *place_;
  if (new_size) changed.size = static_cast<int64_t>(*new_size);
  changed.check();
  if (changed.size != place_->size || (changed.next >= changed.count() && !changed.loaded)) changed.next = 0;
  changed.loaded = false;
  *place_ = changed;
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  check_count("DistributedSampler", "batch_size", static_cast<int64_t>(batch_size), 1);
  place_->loaded = false;
  const int64_t first = place_->next, count = std::min(static_cast<int64_t>(batch_size), num_samples() - first);
  if (count <= 0) return std::nullopt;
  place_->next += count;
  return indices_of(place_->samples(first, first + count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const { write_fields(archive, *place_); }

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  Place saved = read_fields(archive, *place_);
  const char* op = "DistributedSampler: load: ";
  TORCH_CHECK_VALUE(saved.size == place_->size && saved.num_replicas == place_->num_replicas, op, "was saved with ",
                    saved.size, " samples for ", saved.num_replicas, " replicas, this one has ", place_->size, " for ",
                    place_->num_replicas);
  TORCH_CHECK_VALUE(saved.shuffle == place_->shuffle && saved.drop_last == place_->drop_last, op,
                    "was saved with shuffle = ", word(saved.shuffle), " and drop_last = ", word(saved.drop_last),
                    ", this one has ", word(place_->shuffle), " and ", word(place_->drop_last));
  TORCH_CHECK_VALUE(saved.epoch >= 0 && saved.next >= 0 && saved.next <= saved.count(), op, "sample ", saved.next,
                    " of epoch ", saved.epoch, " is outside of ", saved.count(), " samples");
  saved.loaded = true;
  *place_ = saved;
}

}  // namespace moonhalo::data
