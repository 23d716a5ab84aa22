// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/random/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/serialize.h>

#include <set>
#include <sstream>
#include <vector>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_sampler {
namespace {

using data::DistributedSampler;
using data::Sampler;
using data::SamplerState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Indices = std::vector<int64_t>;

Indices list_of(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), at::kLong);
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

/// The batches of the rest of an epoch.
std::vector<Indices> rest(Sampler& sampler) {
  std::vector<Indices> batches;
  while (const auto batch = sampler.next_batch()) batches.push_back(list_of(*batch));
  return batches;
}

/// `count` batches from here on, epochs one after the other.
std::vector<Indices> take(Sampler& sampler, size_t count) {
  std::vector<Indices> batches;
  while (batches.size() < count) {
    if (const auto batch = sampler.next_batch()) batches.push_back(list_of(*batch));
  }
  return batches;
}

/// A data set whose samples are their indices.
class Numbers : public torch::data::datasets::BatchDataset<Numbers, at::Tensor> {
 public:
  explicit Numbers(size_t count) : count_(count) {}
  at::Tensor get_batch(at::ArrayRef<size_t> indices) override {
    return at::tensor(Indices(indices.begin(), indices.end()), at::kLong);
  }
  std::optional<size_t> size() const override { return count_; }

 private:
  size_t count_;
};

template <class AnySampler>
auto loader_of(size_t count, const AnySampler& sampler, torch::data::DataLoaderOptions options) {
  return torch::data::make_data_loader(Numbers(count), sampler, options);
}

template <class Loader>
std::vector<Indices> loop(Loader& loader) {
  std::vector<Indices> batches;
  for (const at::Tensor& batch : loader) batches.push_back(list_of(batch));
  return batches;
}

template <class AnySampler>
void copy_by_archive(const AnySampler& from, AnySampler& to) {
  std::stringstream stream;
  torch::serialize::OutputArchive written;
  from.save(written);
  written.save_to(stream);
  torch::serialize::InputArchive read;
  read.load_from(stream);
  to.load(read);
}

// The orders that tests/scripting/data_sampler_ranks3.lua expects.
TEST(Sampler, X12OrdersAreThoseOfLua) {
  Sampler sampler(12, {.batch = 12, .seed = 1});

  EXPECT_THAT(rest(sampler), ElementsAre(Indices{0, 4, 9, 6, 11, 7, 8, 10, 5, 2, 3, 1}));
  EXPECT_THAT(rest(sampler), ElementsAre(Indices{2, 3, 10, 5, 6, 0, 1, 11, 7, 8, 4, 9}));
}

TEST(Sampler, LastBatchIsSmallerOrLeftOut) {
  Sampler all(5, {.batch = 2, .shuffle = false}), whole(5, {.batch = 2, .shuffle = false, .drop_last = true});

  EXPECT_THAT(rest(all), ElementsAre(Indices{0, 1}, Indices{2, 3}, Indices{4}));
  EXPECT_THAT(rest(whole), ElementsAre(Indices{0, 1}, Indices{2, 3}));
  EXPECT_EQ(all.num_batches(), 3);
  EXPECT_EQ(whole.num_batches(), 2);
  EXPECT_EQ(whole.state_dict().epoch, 1);
  EXPECT_EQ(whole.state_dict().next, 0);
}

TEST(Sampler, X12GoesOnAfterAnyBatch) {
  for (const bool drop_last : {false, true}) {
    Sampler whole(23, {.batch = 5, .seed = 9, .drop_last = drop_last});
    const std::vector<Indices> expected = take(whole, 14);
    for (size_t stop = 0; stop <= 12; ++stop) {
      Sampler before(23, {.batch = 5, .seed = 9, .drop_last = drop_last});
      take(before, stop);
      Sampler after(23, {.batch = 5, .drop_last = drop_last}), read(23, {.batch = 5, .drop_last = drop_last});

      after.load_state_dict(before.state_dict());
      copy_by_archive(before, read);

      const std::vector<Indices> remaining(expected.begin() + static_cast<int64_t>(stop), expected.end());
      EXPECT_EQ(take(after, 14 - stop), remaining) << stop;
      EXPECT_EQ(take(read, 14 - stop), remaining) << stop;
    }
  }
}

TEST(Sampler, RefusesNumbersAndStates) {
  EXPECT_EQ(message_of([] { Sampler(0); }), "Sampler: size is 0, expected an integer of at least 1");
  EXPECT_EQ(message_of([] { Sampler(4, {.batch = 0}); }), "Sampler: batch is 0, expected an integer of at least 1");
  EXPECT_EQ(message_of([] { Sampler(4, {.batch = 5, .drop_last = true}); }),
            "Sampler: drop_last leaves nothing of 4 samples in batches of 5");
  const auto refused = [](const auto& change) {
    Sampler sampler(1200, {.batch = 8});
    SamplerState state = sampler.state_dict();
    change(state);
    const std::string message = message_of([&] { sampler.load_state_dict(state); });
    EXPECT_EQ(sampler.state_dict().next, 0);
    return message;
  };
  EXPECT_THAT(
      refused([](SamplerState& state) { state.size = 1000; }),
      HasSubstr("Sampler: load_state_dict: has 1000 samples, the data set 1200\n  fix   load it with the data"));
  EXPECT_THAT(refused([](SamplerState& state) { state.shuffle = false; }),
              HasSubstr("load_state_dict: was saved with shuffle = false, this one has true"));
  EXPECT_THAT(refused([](SamplerState& state) { state.next = 1201; }),
              HasSubstr("load_state_dict: sample 1201 of epoch 0 is outside of 1200 samples"));
}

TEST(Sampler, X12LoadersOfLibTorchContinue) {
  for (const size_t workers : {0, 2}) {
    Sampler plain(11, {.batch = 4, .seed = 5}), sampler(11, {.seed = 5});
    const auto loader = loader_of(11, sampler, torch::data::DataLoaderOptions(4).workers(workers));
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      EXPECT_EQ(loop(*loader), rest(plain)) << workers;
      EXPECT_EQ(sampler.state_dict().epoch, epoch + 1);  // the loader's copy is the same sampler
    }
  }
  Sampler plain(11, {.batch = 4, .seed = 5}), before(11, {.seed = 5}), after(11);
  const auto first = loader_of(11, before, 4), second = loader_of(11, after, 4);
  for (auto batch = first->begin(); before.state_dict().next < 8; ++batch) (void)*batch;  // two batches

  after.load_state_dict(before.state_dict());

  const std::vector<Indices> epoch = rest(plain);
  EXPECT_THAT(loop(*second), ElementsAre(epoch[2]));
  EXPECT_EQ(loop(*second), rest(plain));
}

TEST(Sampler, LoopsOfLoadersAreNeverEmpty) {
  Sampler sampler(10, {.shuffle = false});
  const auto dropping = loader_of(10, sampler, torch::data::DataLoaderOptions(4).drop_last(true));
  EXPECT_THAT(loop(*dropping), ElementsAre(Indices{0, 1, 2, 3}, Indices{4, 5, 6, 7}));
  EXPECT_THAT(loop(*dropping), ElementsAre(Indices{0, 1, 2, 3}, Indices{4, 5, 6, 7}));

  for (const int64_t own_batch : {1, 4, 5}) {  // the loader gives batches of 4
    Sampler after(10, {.batch = own_batch, .shuffle = false, .drop_last = true});
    SamplerState state = after.state_dict();
    state.next = 8;  // saved in the loop of the last batch
    after.load_state_dict(state);

    EXPECT_EQ(loop(*loader_of(10, after, 4)).size(), 2U) << own_batch;
    EXPECT_EQ(after.state_dict().epoch, 2) << own_batch;
    after.next_batch();
    after.reset(8);
    EXPECT_THAT(rest(after), ElementsAre(Indices{0, 1, 2, 3}, Indices{4, 5, 6, 7}));
  }
}

TEST(Sampler, RestsAsLargeAsTheBatchOfTheLoaderAreGiven) {
  Sampler after(10, {.batch = 6, .shuffle = false, .drop_last = true});
  SamplerState state = after.state_dict();
  state.next = 6;
  after.load_state_dict(state);

  EXPECT_THAT(loop(*loader_of(10, after, 4)), ElementsAre(Indices{6, 7, 8, 9}));
}

// PyTorch 2.11: DistributedSampler(range(size), replicas, rank, shuffle=False, drop_last=drop_last)
TEST(DistributedSampler, N44UnevenReplicasAreThoseOfPyTorch) {
  const auto of = [](int64_t size, int64_t replicas, int64_t rank, bool drop_last = false) {
    const DistributedSampler sampler(size, replicas, rank, {.shuffle = false, .drop_last = drop_last});
    EXPECT_EQ(sampler.num_samples(), sampler.indices().numel());
    return list_of(sampler.indices());
  };
  EXPECT_THAT(of(7, 3, 0), ElementsAre(0, 3, 6));
  EXPECT_THAT(of(7, 3, 1), ElementsAre(1, 4, 0));
  EXPECT_THAT(of(7, 3, 2), ElementsAre(2, 5, 1));
  EXPECT_THAT(of(7, 3, 0, true), ElementsAre(0, 3));
  EXPECT_THAT(of(7, 3, 2, true), ElementsAre(2, 5));
  EXPECT_THAT(of(2, 5, 3), ElementsAre(1));
  EXPECT_THAT(of(2, 5, 4), ElementsAre(0));
}

TEST(DistributedSampler, N44ReplicasShareTheSamplesOfEachEpoch) {
  Indices first, second;
  for (int64_t rank = 0; rank < 3; ++rank) {
    DistributedSampler sampler(31, 3, rank, {.seed = 4, .drop_last = true});
    for (const int64_t sample : list_of(sampler.indices())) first.push_back(sample);
    sampler.set_epoch(1);
    EXPECT_EQ(sampler.epoch(), 1);
    for (const int64_t sample : list_of(sampler.indices())) second.push_back(sample);
  }
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 30U);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 30U);
}

TEST(DistributedSampler, LoadersOfLibTorchContinue) {
  DistributedSampler sampler(22, 2, 1, {.seed = 5}), after(22, 2, 1);
  const auto loader = loader_of(22, sampler, 4), second = loader_of(22, after, 4);
  for (const int64_t epoch : {0, 1}) {
    sampler.set_epoch(epoch);
    const std::vector<Indices> batches = loop(*loader);
    Indices all;
    for (const Indices& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
    EXPECT_EQ(batches.size(), 3U);
    EXPECT_EQ(all, list_of(sampler.indices()));
  }
  sampler.set_epoch(2);
  EXPECT_EQ(loop(*loader).size(), 3U);
  sampler.set_epoch(3);
  (void)*loader->begin();  // one batch

  copy_by_archive(sampler, after);

  EXPECT_EQ(after.epoch(), 3);
  EXPECT_EQ(loop(*second), loop(*loader));
}

TEST(DistributedSampler, LoadersOfLibTorchDoNotRepeatALoadedEpoch) {
  for (const size_t workers : {0, 2}) {
    DistributedSampler before(22, 2, 1, {.seed = 5}), after(22, 2, 1);
    const auto options = torch::data::DataLoaderOptions(4).workers(workers);
    const auto first = loader_of(22, before, options), second = loader_of(22, after, options);
    EXPECT_EQ(loop(*first).size(), 3U);

    copy_by_archive(before, after);

    EXPECT_THAT(loop(*second), IsEmpty()) << workers;
    EXPECT_EQ(loop(*second), loop(*first)) << workers;  // once: it begins again

    copy_by_archive(before, after);
    before.set_epoch(1);
    after.set_epoch(1);
    EXPECT_EQ(loop(*second), loop(*first)) << workers;
    EXPECT_EQ(loop(*second).size(), 3U) << workers;
  }
}

TEST(DistributedSampler, RefusesNumbersAndStates) {
  EXPECT_EQ(message_of([] { DistributedSampler(50, 3, 3); }),
            "DistributedSampler: rank 3 of 3 replicas\n  fix   ranks count from 0");
  EXPECT_EQ(message_of([] { DistributedSampler(2, 3, 0, {.drop_last = true}); }),
            "DistributedSampler: drop_last leaves nothing of 2 samples for 3 replicas");
  EXPECT_EQ(message_of([] { DistributedSampler(0, 3, 0); }),
            "DistributedSampler: size of the data set is 0, expected an integer of at least 1");
  EXPECT_EQ(message_of([] { DistributedSampler(5, 3, 0).set_epoch(-1); }),
            "DistributedSampler: epoch is -1, expected an integer of at least 0");
  const DistributedSampler saved(6, 3, 0);
  DistributedSampler fewer(6, 2, 0), ordered(6, 3, 0, {.shuffle = false});
  EXPECT_EQ(message_of([&] { copy_by_archive(saved, fewer); }),
            "DistributedSampler: load: was saved with 6 samples for 3 replicas, this one has 6 for 2");
  EXPECT_THAT(message_of([&] { copy_by_archive(saved, ordered); }), HasSubstr("was saved with shuffle = true"));
}

}  // namespace
}  // namespace moonhalo::testing::test_sampler
