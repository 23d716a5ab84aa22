// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "tests/support/oracle.h"
#include "tests/support/patience.h"
#include "tests/support/ranks.h"
#include "tests/support/verbs.h"

namespace moonhalo::test_communicator {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::on_ranks;
using ::testing::StartsWith;
using testing::verb_cases;

// every verb on 1 to 4 (and, with uneven shares of small things, 7) thread ranks.

class ThreadsCommunicator : public ::testing::TestWithParam<std::tuple<size_t, int>> {};

TEST_P(ThreadsCommunicator, PassesTheCase) {
  const auto [index, ranks] = GetParam();
  on_ranks(ranks, verb_cases()[index].check);
}

INSTANTIATE_TEST_SUITE_P(Cases, ThreadsCommunicator,
                         ::testing::Combine(::testing::Range(size_t{0}, verb_cases().size()),
                                            ::testing::Values(1, 2, 3, 4, 7)),
                         [](const auto& info) {
                           return std::string(verb_cases()[std::get<0>(info.param)].name) + "_on_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(SelfCommunicator, PassesEveryCase) {
  for (const auto& verb_case : verb_cases()) {
    SCOPED_TRACE(verb_case.name);
    verb_case.check(*make_self_communicator());
  }
}

// calls that do not match.

struct Mismatch {
  const char* name;
  void (*rank_0)(Communicator&);
  void (*others)(Communicator&);
  const char* text;
};

void reduce(Communicator& comm, int64_t n, at::ScalarType dtype = at::kFloat, ReduceOp op = ReduceOp::kSum) {
  at::Tensor data = at::ones({n}, dtype);
  comm.all_reduce(data, op);
}

void send_to_1(Communicator& comm, int64_t n) { comm.exchange({{1, at::ones({n})}}, {}); }

void receive_from_0(Communicator& comm, int64_t n) {
  std::vector<Message> receives;
  if (comm.rank() == 1) receives.push_back({0, at::ones({n})});
  comm.exchange({}, receives);
}

const Mismatch kMismatches[] = {
    {"parts",
     [](Communicator& c) {
       c.exchange({{1, {}, {at::ones({4}), at::ones({2})}}}, {});
     },
     [](Communicator& c) { receive_from_0(c, 6); }, "have  4 + 2 x Float sent, 6 x Float expected"},
    {"barrier_and_all_reduce", [](Communicator& c) { c.barrier(); }, [](Communicator& c) { reduce(c, 3); },
     "ranks 0 and 1 of this group make different calls"},
    {"sizes", [](Communicator& c) { reduce(c, 3); }, [](Communicator& c) { reduce(c, 4); }, "3 elements"},
    {"small_and_large", [](Communicator& c) { reduce(c, 3); }, [](Communicator& c) { reduce(c, 400000); },
     "400000 elements"},
    {"dtypes", [](Communicator& c) { reduce(c, 3); }, [](Communicator& c) { reduce(c, 3, at::kInt); },
     "all_reduce of Int"},
    {"ops", [](Communicator& c) { reduce(c, 3); }, [](Communicator& c) { reduce(c, 3, at::kFloat, ReduceOp::kMax); },
     "op max"},
    {"roots",
     [](Communicator& c) {
       at::Tensor data = at::ones({3});
       c.broadcast(data, 0);
     },
     [](Communicator& c) {
       at::Tensor data = at::ones({3});
       c.broadcast(data, 1);
     },
     "root 1"},
    {"counts",
     [](Communicator& c) {
       at::Tensor out = at::ones({c.size()});
       c.all_gather(at::ones({1}), std::vector<int64_t>(c.size(), 1), out);
     },
     [](Communicator& c) {
       std::vector<int64_t> counts(c.size(), 1);
       counts[0] = 2;
       at::Tensor out = at::ones({c.size() + 1});
       c.all_gather(at::ones({1}), counts, out);
     },
     "counts [2"},
    {"all_to_all_counts",
     [](Communicator& c) {
       std::vector<int64_t> counts(c.size(), 0);
       counts[1] = 2;
       at::Tensor out = at::ones({0});
       c.all_to_all(at::ones({2}), counts, out, std::vector<int64_t>(c.size(), 0));
     },
     [](Communicator& c) {
       at::Tensor out = at::ones({0});
       c.all_to_all(at::ones({0}), std::vector<int64_t>(c.size(), 0), out, std::vector<int64_t>(c.size(), 0));
     },
     "send_counts [0, 2"},
    {"extra_exchange", [](Communicator& c) { c.barrier(); },
     [](Communicator& c) {
       c.exchange({}, {});
       c.barrier();
     },
     "call 2 of this group"},
    {"exchange_and_all_reduce", [](Communicator& c) { send_to_1(c, 100000); }, [](Communicator& c) { reduce(c, 3); },
     "call 1 of this group is "},
    {"message_sizes", [](Communicator& c) { send_to_1(c, 100000); }, [](Communicator& c) { receive_from_0(c, 7); },
     "100000 x Float sent, 7 x Float expected"},
    {"one_rank_ends", [](Communicator& c) { reduce(c, 3); }, [](Communicator&) {}, "ended without joining all_reduce"},
    {"sender_ends", [](Communicator&) {}, [](Communicator& c) { receive_from_0(c, 7); },
     "rank 0 ended without joining exchange"},
    {"receiver_ends", [](Communicator& c) { send_to_1(c, 100000); }, [](Communicator&) {},
     "ended without joining exchange"},
};

class Mismatched : public ::testing::TestWithParam<std::tuple<Mismatch, int>> {};

TEST_P(Mismatched, CallsThrowOnAllRanksThatWait) {
  const auto& [mismatch, ranks] = GetParam();
  std::atomic<int> threw{0};

  const std::string message = message_of([&, &mismatch = mismatch] {
    on_ranks(ranks, [&](Communicator& comm) {
      try {
        (comm.rank() == 0 ? mismatch.rank_0 : mismatch.others)(comm);
      } catch (const std::exception&) {
        ++threw;
        throw;
      }
    });
  });

  EXPECT_THAT(message, HasSubstr(mismatch.text));
  EXPECT_THAT(message, StartsWith("rank "));
  EXPECT_GE(threw.load(), 1);
}

INSTANTIATE_TEST_SUITE_P(Cases, Mismatched,
                         ::testing::Combine(::testing::ValuesIn(kMismatches), ::testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_on_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(CommunicatorErrors, MismatchReachesEveryRankAsAValueErrorOnce) {
  std::atomic<int> value_errors{0}, later{0};

  on_ranks(3, [&](Communicator& comm) {
    EXPECT_THROW(reduce(comm, comm.rank() == 1 ? 5 : 4), c10::ValueError);
    ++value_errors;
    EXPECT_THROW(comm.barrier(), c10::ValueError);
    ++later;
  });

  EXPECT_EQ(value_errors.load(), 3);
  EXPECT_EQ(later.load(), 3);
}

// silence, abort, exceptions.

TEST(CommunicatorErrors, TimeoutNamesTheVerbAndWhoDidNotCome) {
  for (const bool collective : {true, false}) {
    const auto attempt = [&](std::chrono::milliseconds limit) {
      std::atomic<bool> timed_out{false}, late_threw{false};
      const std::string message = message_of([&] {
        on_ranks(3, [&](Communicator& comm) {
          comm.set_timeout(limit);
          if (comm.rank() == 2) {
            while (!timed_out) std::this_thread::sleep_for(1ms);
            EXPECT_THROW(comm.barrier(), CommError);
            late_threw = true;
            return;
          }
          try {
            collective ? comm.barrier() : comm.exchange({}, {{2, at::ones({4})}});
          } catch (const CommError&) {
            timed_out = true;
            throw;
          }
        });
      });
      EXPECT_TRUE(late_threw);
      const std::string verb = collective ? "barrier" : "exchange";
      const auto expected = AllOf(HasSubstr(verb + " timed out after " + seconds_text(limit)),
                                  HasSubstr("rank 2 did not come"), HasSubstr("no call of this group yet"));
      return ::testing::Matches(expected)(message) ? "" : message;
    };
    EXPECT_EQ(testing::with_longer_limits(200ms, attempt), "");
  }
}

TEST(CommunicatorErrors, TimeoutIsReadFromTheEnvironmentAndInherited) {
  ::setenv("MOONHALO_TIMEOUT_S", "1.5", 1);
  EXPECT_EQ(make_self_communicator()->timeout(), 1500ms);
  ::setenv("MOONHALO_TIMEOUT_S", "soon", 1);
  EXPECT_THAT(message_of([] { make_self_communicator(); }), HasSubstr("MOONHALO_TIMEOUT_S=soon"));
  ::unsetenv("MOONHALO_TIMEOUT_S");
  EXPECT_EQ(make_self_communicator()->timeout(), 10min);
  on_ranks(2, [](Communicator& comm) {
    comm.set_timeout(7s);
    EXPECT_EQ(comm.split(0, 0)->timeout(), 7s);
  });
}

TEST(CommunicatorErrors, AbortWakesEveryGroup) {
  std::atomic<int> stopped{0};

  on_ranks(4, [&](Communicator& comm) {
    const CommunicatorPtr pair = comm.split(comm.rank() / 2, comm.rank());
    const CommunicatorPtr alone = comm.split(comm.rank(), 0);
    if (comm.rank() == 3) {
      std::this_thread::sleep_for(100ms);
      pair->abort("the disk is full");
    } else if (comm.rank() == 0) {
      EXPECT_THROW(pair->exchange({}, {{1, at::ones({4})}}), CommError);
    } else {
      EXPECT_THAT(message_of([&] { comm.barrier(); }), HasSubstr("the disk is full"));
    }
    for (Communicator* group : {&comm, pair.get(), alone.get()}) {
      EXPECT_THAT(message_of([&] { reduce(*group, 2); }), HasSubstr("the disk is full"));
    }
    ++stopped;
  });

  EXPECT_EQ(stopped.load(), 4);
}

struct Special : std::runtime_error {
  using std::runtime_error::runtime_error;
  int code = 42;
};

template <typename Error, typename Throw>
void expect_rethrown(Throw throw_it, const std::string& text) {
  std::atomic<int> stopped{0};
  try {
    on_ranks(3, [&](Communicator& comm) {
      at::Tensor large = at::ones({100000});
      try {
        for (int i = 0;; ++i) {
          if (comm.rank() == 1 && i == 20) throw_it();
          comm.all_reduce(large, ReduceOp::kAvg);
          comm.exchange({{(comm.rank() + 1) % 3, large}}, {{(comm.rank() + 2) % 3, large.clone()}});
        }
      } catch (const CommError& error) {
        if (comm.rank() != 1) {
          EXPECT_THAT(error.what(), HasSubstr("rank 1 failed: "));
          ++stopped;
        }
        throw;
      }
    });
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(typeid(error), typeid(Error));
    EXPECT_THAT(error.what(), StartsWith(text));
  }
  EXPECT_EQ(stopped.load(), 2);
}

TEST(CommunicatorErrors, AnExceptionOnOneRankStopsTheOthersAndKeepsItsType) {
  expect_rethrown<c10::ValueError>([] { TORCH_CHECK_VALUE(false, "conv2d: window 9"); }, "rank 1: conv2d: window 9");
  expect_rethrown<c10::NotImplementedError>([] { TORCH_CHECK_NOT_IMPLEMENTED(false, "later"); }, "rank 1: later");
  expect_rethrown<c10::Error>([] { TORCH_CHECK(false, "oops"); }, "rank 1: oops");
  expect_rethrown<CommError>([] { throw CommError("lost"); }, "rank 1: lost");
  expect_rethrown<std::runtime_error>([] { throw std::runtime_error("train.lua:7: x"); }, "rank 1: train.lua:7: x");
  expect_rethrown<std::invalid_argument>([] { throw std::invalid_argument("bad"); }, "rank 1: bad");
  expect_rethrown<Special>([] { throw Special("kept whole"); }, "kept whole");
}

// run_ranks itself.

TEST(RunRanks, NamesThreadsDividesCoresAndRestoresThem) {
  at::set_num_threads(4);
  const c10::InferenceMode inherited;

  run_ranks(2, [](Communicator& comm) {
    char thread_name[16] = "";
    pthread_getname_np(pthread_self(), thread_name, sizeof(thread_name));
    EXPECT_EQ(thread_name, "rank " + std::to_string(comm.rank()));
    EXPECT_EQ(at::get_num_threads(), 2);
    EXPECT_TRUE(c10::InferenceMode::is_enabled());
  });
  run_ranks(
      2, [](Communicator&) { EXPECT_EQ(at::get_num_threads(), 3); }, 3);

  EXPECT_EQ(at::get_num_threads(), 4);
  EXPECT_THROW(run_ranks(0, [](Communicator&) {}), c10::ValueError);
}

TEST(RunRanks, RunsExitHooksOfEachRankInReverseAlsoAfterAnError) {
  std::array<std::string, 3> log;

  EXPECT_THROW(run_ranks(3,
                         [&](Communicator& comm) {
                           std::string& mine = log[comm.rank()];
                           at_rank_exit([&mine] { mine += "first "; });
                           at_rank_exit([&mine] { mine += "second "; });
                           if (comm.rank() == 2) throw std::runtime_error("x");
                         }),
               std::runtime_error);

  for (const std::string& mine : log) EXPECT_EQ(mine, "second first ");
  bool ran = false;
  std::thread([&] { at_rank_exit([&] { ran = true; }); }).join();
  EXPECT_TRUE(ran);
}

TEST(RunRanks, KeepsTwoWorldsApart) {
  std::thread other([] {
    EXPECT_THROW(run_ranks(2,
                           [](Communicator& comm) {
                             if (comm.rank() == 1) throw std::runtime_error("only here");
                             comm.barrier();
                           }),
                 std::runtime_error);
  });
  on_ranks(2, [](Communicator& comm) {
    for (int i = 0; i < 500; ++i) reduce(comm, 3000);
  });
  other.join();
}

TEST(CommStats, X13_EveryVerbAddsToTheTimeWaitedAndOnce) {
  on_ranks(2, [](Communicator& comm) {
    const int other = 1 - comm.rank();
    at::Tensor data = at::ones({6}), part = at::ones({3}), arrived = at::ones({6});
    WorkPtr work;
    const std::vector<std::pair<const char*, std::function<void()>>> verbs = {
        {"exchange",
         [&] {
           comm.exchange({{other, data}}, {{other, arrived}});
         }},
        {"exchange_async",
         [&] {
           work = comm.exchange_async({{other, data}}, {{other, arrived}});
         }},
        {"wait", [&] { work->wait(); }},
        {"all_reduce", [&] { comm.all_reduce(data); }},
        {"all_gather",
         [&] {
           comm.all_gather(part, {3, 3}, arrived);
         }},
        {"reduce_scatter",
         [&] {
           comm.reduce_scatter(data, {3, 3}, part);
         }},
        {"all_to_all",
         [&] {
           comm.all_to_all(data, {3, 3}, arrived, {3, 3});
         }},
        {"broadcast", [&] { comm.broadcast(data, 0); }},
        {"barrier", [&] { comm.barrier(); }},
        {"split", [&] { comm.split(0, comm.rank()); }},
        {"all_gather_strings", [&] { comm.all_gather_strings("a"); }},
        {"facts_of_all", [&] { comm.facts_of_all(part); }}};
    comm.reset_stats();
    EXPECT_EQ(comm.stats().waited, 0);
    for (const auto& [name, verb] : verbs) {
      const double before = comm.stats().waited;
      const auto begin = std::chrono::steady_clock::now();
      verb();
      const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
      EXPECT_GT(comm.stats().waited, before) << name;
      EXPECT_LE(comm.stats().waited - before, whole.count()) << name;
    }
  });
}

TEST(CommStats, FactsOfAllRanks) {
  on_ranks(3, [](Communicator& comm) {
    const at::Tensor all = comm.facts_of_all(at::tensor({comm.rank() + 1, 7}, at::kLong));
    EXPECT_TRUE(at::equal(all, at::tensor({1, 7, 2, 7, 3, 7}, at::kLong).view({3, 2})));
  });
}

// the fake backend, names.

TEST(FakeCommunicator, CountsAndMovesNothing) {
  const CommunicatorPtr comm = make_fake_communicator(1, 4096);
  std::vector<int64_t> counts(4096, 2);
  at::Tensor part = at::full({2}, 7.0), all = at::ones({8192}), halo = at::ones({5});

  comm->all_gather(part, counts, all);
  comm->exchange({{2, part}, {0, part}}, {{0, halo}});
  comm->all_reduce(all);
  comm->barrier();

  EXPECT_STREQ(comm->backend(), "fake");
  EXPECT_TRUE(comm->is_fake());
  EXPECT_FALSE(make_self_communicator()->is_fake());
  EXPECT_EQ(all.sum().item<double>(), 14);
  EXPECT_EQ(all[2].item<double>(), 7);
  EXPECT_EQ(halo.sum().item<double>(), 0);
  EXPECT_EQ(comm->stats().by_kind[CommStats::kExchange].bytes, 16);
  EXPECT_EQ(comm->stats().by_kind[CommStats::kAllGather].bytes, 8 * 4095);
  EXPECT_THAT(message_of([&] { comm->split(0, 0); }), HasSubstr("make_fake_subgroup"));
  EXPECT_EQ(comm->all_gather_strings("me")[1], "me");
  EXPECT_EQ(comm->all_gather_strings("me")[4095], "me");
  EXPECT_TRUE(at::equal(comm->facts_of_all(part), part.expand({4096, 2})));
  comm->abort("enough");
  EXPECT_THAT(message_of([&] { comm->barrier(); }), HasSubstr("communicator: rank 1 of 4096 stops: enough"));
}

// Facts of many ranks are larger than what is real among fake tensors.
TEST(FakeCommunicator, X14_FactsAreComputedBesideFakeTensors) {
  const FakeResults fakes;
  const CommunicatorPtr comm = make_fake_communicator(5, 4096);
  const std::string text(20000, 'x');

  const at::Tensor all = comm->facts_of_all(at::tensor({3, 7}, at::kLong));

  EXPECT_FALSE(is_fake(all));
  EXPECT_EQ(all.const_data_ptr<int64_t>()[2 * 4095 + 1], 7);
  EXPECT_EQ(all.const_data_ptr<int64_t>()[0], 3);
  EXPECT_EQ(comm->all_gather_strings(text)[77], text);
}

TEST(ReduceOps, HaveNeutralValues) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool}) {
    const at::Tensor values = at::tensor({1, 0, 3}).to(dtype);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
      at::Tensor reduced = at::empty_like(values);
      reduce_tensors(op, {values, at::full_like(values, neutral_value(op, dtype))}, reduced);
      EXPECT_TRUE(at::equal(reduced, values)) << name(op) << " of " << dtype;
    }
  }
}

TEST(ReduceOps, ParseTheirNamesAndSuggest) {
  for (const char* text : {"sum", "avg", "max", "min", "product"}) EXPECT_STREQ(name(parse_reduce_op(text)), text);
  EXPECT_THAT(message_of([] { parse_reduce_op("mean"); }),
              AllOf(StartsWith("reduce op: unknown name \"mean\""), HasSubstr("did you mean 'avg'?")));
}

}  // namespace
}  // namespace moonhalo::test_communicator
