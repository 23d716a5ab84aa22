// SPDX-License-Identifier: Apache-2.0
#include "tests/support/verbs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>

#include "moonhalo/engine/comm/device/device_communicators.h"

namespace moonhalo::testing {
namespace {

using at::Tensor;
using Counts = std::vector<int64_t>;

const at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kHalf,         at::kBFloat16,
                                  at::kByte,  at::kChar,   at::kShort,        at::kInt,
                                  at::kLong,  at::kBool,   at::kComplexFloat, at::kComplexDouble};
// Nothing, one element, less than a cache line, and more than any backend treats as small.
const int64_t kSizes[] = {0, 1, 7, 2500, 20001};
const ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};

// The device that a group carries tensors of.
c10::Device place(Communicator& comm) { return device_of(comm).value_or(c10::Device(at::kCPU)); }

// Makes what rank `rank` holds: sums of it are not exact in floating point, so the order of a reduction shows.
Tensor values(int rank, int64_t n, at::ScalarType dtype, int salt = 0) {
  const Tensor whole = (at::arange(n, at::kLong) * 7 + rank * 13 + salt * 5).remainder(11) - 5;
  if (dtype == at::kBool) return whole.remainder(3) == 0;
  if (at::isComplexType(dtype)) return at::complex(whole * 0.1, (whole - rank) * 0.3).to(dtype);
  if (at::isFloatingType(dtype)) return (whole.to(at::kDouble) * 0.1).to(dtype);
  return whole.to(dtype);
}

bool reducible(at::ScalarType dtype, ReduceOp op) {
  if (at::isComplexType(dtype)) return op != ReduceOp::kMax && op != ReduceOp::kMin;
  return at::isFloatingType(dtype) || op != ReduceOp::kAvg;
}

Tensor reduced_two(const Tensor& a, const Tensor& b, ReduceOp op) {
  const bool flags = a.scalar_type() == at::kBool;
  if (op == ReduceOp::kMax) return flags ? a.logical_or(b) : at::maximum(a, b);
  if (op == ReduceOp::kMin) return flags ? a.logical_and(b) : at::minimum(a, b);
  if (op == ReduceOp::kProduct) return flags ? a.logical_and(b) : a * b;
  return flags ? a.logical_or(b) : a + b;
}

// The same with LibTorch's operators, by the rule: the first ranks in pairs, so that as many values are left as a power
// of two; then neighbours, until one is left.
Tensor reduced(const std::vector<Tensor>& parts, ReduceOp op) {
  const at::ScalarType dtype = parts[0].scalar_type();
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  std::vector<Tensor> values;
  for (const Tensor& part : parts) values.push_back(narrow ? part.to(at::kFloat) : part);
  size_t leaves = 1;
  while (2 * leaves <= values.size()) leaves *= 2;
  for (size_t i = 0; values.size() > leaves; ++i) {
    values[i] = reduced_two(values[i], values[i + 1], op);
    values.erase(values.begin() + static_cast<int64_t>(i) + 1);
  }
  for (; values.size() > 1; values.resize(values.size() / 2)) {
    for (size_t i = 0; i < values.size() / 2; ++i) values[i] = reduced_two(values[2 * i], values[2 * i + 1], op);
  }
  Tensor result = values[0];
  if (op == ReduceOp::kAvg) result = result / static_cast<double>(parts.size());
  return result.to(dtype);
}

std::vector<Tensor> of_all_ranks(int size, int64_t n, at::ScalarType dtype) {
  std::vector<Tensor> parts;
  for (int r = 0; r < size; ++r) parts.push_back(values(r, n, dtype));
  return parts;
}

bool same_values(const Tensor& a, const Tensor& b) { return at::equal(a.cpu(), b); }

// Ranks are added in an order of NCCL's own, and half types rounded at every step, unless that is switched off.
bool in_any_order(Communicator& comm) {
  if (comm.backend() != std::string_view("nccl")) return false;
  const bool ordered = set_ordered_reductions(true);
  set_ordered_reductions(ordered);
  return !ordered;
}

bool same(Communicator& comm, const Tensor& there, const Tensor& b) {
  const Tensor a = there.cpu();
  // The product of complex numbers may be fused differently by compilers; everything else is exact.
  if (a.is_complex()) return a.numel() == 0 || at::allclose(a, b, 1e-5, 1e-6);
  if (in_any_order(comm) && a.is_floating_point()) {
    const double eps = a.scalar_type() == at::kBFloat16 ? 0.04 : a.scalar_type() == at::kHalf ? 5e-3 : 1e-6;
    return a.scalar_type() == b.scalar_type() && at::allclose(a, b, eps, eps);
  }
  return a.scalar_type() == b.scalar_type() && at::equal(a, b);
}

int64_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

Counts uneven(int size, int64_t scale) {
  const Counts pattern = {3, 0, 5, 1};
  Counts counts;
  for (int r = 0; r < size; ++r) counts.push_back(pattern[r % 4] * scale);
  return counts;
}

void all_reduce(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      if (!reducible(dtype, op)) continue;
      for (const int64_t n : kSizes) {
        Tensor data = values(comm.rank(), n, dtype).to(place(comm));

        comm.all_reduce(data, op);

        EXPECT_TRUE(same(comm, data, reduced(of_all_ranks(comm.size(), n, dtype), op)))
            << name(op) << " of " << n << " x " << dtype;
      }
    }
  }
}

void all_reduce_keeps_shape_and_gives_nan_to_all(Communicator& comm) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kSum}) {
    Tensor data = at::full({2, 3}, comm.rank() == comm.size() / 2 ? nan : comm.rank(),
                           at::device(place(comm)).dtype(at::kDouble));

    comm.all_reduce(data, op);

    EXPECT_TRUE(data.isnan().all().item<bool>()) << name(op);
    EXPECT_EQ(data.sizes(), (at::IntArrayRef{2, 3}));
  }
}

void all_gather(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t scale : {0, 1, 10, 3000}) {
      const Counts counts = uneven(comm.size(), scale);
      const Tensor in = values(comm.rank(), counts[comm.rank()], dtype).to(place(comm));
      Tensor out = at::zeros({sum(counts)}, at::device(place(comm)).dtype(dtype));

      comm.all_gather(in, counts, out);

      std::vector<Tensor> parts;
      for (int r = 0; r < comm.size(); ++r) parts.push_back(values(r, counts[r], dtype));
      EXPECT_TRUE(same_values(out, at::cat(parts))) << dtype << " scale " << scale;
    }
  }
}

void reduce_scatter(Communicator& comm) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      if (!reducible(dtype, op)) continue;
      for (const int64_t scale : {0, 1, 10, 3000}) {
        const Counts counts = uneven(comm.size(), scale);
        const Tensor in = values(comm.rank(), sum(counts), dtype).to(place(comm));
        Tensor out = at::zeros({counts[comm.rank()]}, at::device(place(comm)).dtype(dtype));

        comm.reduce_scatter(in, counts, out, op);

        const Tensor whole = reduced(of_all_ranks(comm.size(), sum(counts), dtype), op);
        const int64_t begin = sum(Counts(counts.begin(), counts.begin() + comm.rank()));
        EXPECT_TRUE(same(comm, out, whole.narrow(0, begin, counts[comm.rank()])))
            << name(op) << " of " << dtype << " scale " << scale;
      }
    }
  }
}

void all_to_all(Communicator& comm) {
  const int me = comm.rank();
  for (const at::ScalarType dtype : {at::kFloat, at::kBool, at::kComplexDouble}) {
    for (const int64_t scale : {0, 1, 20000}) {
      const auto count = [&](int from, int to) { return (from * 7 + to * 3) % 4 * scale; };
      Counts sent, received;
      std::vector<Tensor> out_parts, in_parts = {at::empty({0}, dtype)};
      for (int r = 0; r < comm.size(); ++r) {
        sent.push_back(count(me, r));
        received.push_back(count(r, me));
        in_parts.push_back(values(me, sent[r], dtype, r));
        out_parts.push_back(values(r, received[r], dtype, me));
      }
      Tensor out = at::zeros({sum(received)}, at::device(place(comm)).dtype(dtype));

      // Short parts go another way where their largest is known.
      for (const int64_t largest : {Communicator::kUnknown + 0, 3 * scale}) {
        out.zero_();

        comm.all_to_all(at::cat(in_parts).to(place(comm)), sent, out, received, largest);

        EXPECT_TRUE(same_values(out, at::cat(out_parts))) << dtype << " scale " << scale << ", largest " << largest;
      }
    }
  }
}

void broadcast(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const int64_t n : kSizes) {
        Tensor data = values(comm.rank(), n, dtype).to(place(comm));

        comm.broadcast(data, root);

        EXPECT_TRUE(same_values(data, values(root, n, dtype))) << n << " x " << dtype << " from " << root;
      }
    }
  }
}

// Every rank to every rank, itself included, several messages for each pair, of all sizes and several dtypes.
void exchange(Communicator& comm) {
  const at::ScalarType dtypes[] = {at::kFloat, at::kBool, at::kHalf};
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<Message> sends, receives;
    for (int peer = 0; peer < comm.size(); ++peer) {
      for (int i = 0; i < 3; ++i) {
        for (const int64_t n : kSizes) {
          sends.push_back({peer, values(comm.rank(), n, dtypes[i], peer + i + repeat).to(place(comm))});
          receives.push_back({peer, at::zeros({n}, at::device(place(comm)).dtype(dtypes[i]))});
        }
      }
    }

    comm.exchange(sends, receives);

    size_t next = 0;
    for (int peer = 0; peer < comm.size(); ++peer) {
      for (int i = 0; i < 3; ++i) {
        for (const int64_t n : kSizes) {
          EXPECT_TRUE(same_values(receives[next++].data, values(peer, n, dtypes[i], comm.rank() + i + repeat)))
              << "from " << peer << ": " << n << " x " << dtypes[i];
        }
      }
    }
  }
}

// Parts of any strides and sizes, none included, to every rank, itself included: one message for each pair. Where
// they are not taken, all ranks are notified.
void exchange_of_parts(Communicator& comm) {
  if (!comm.takes_parts()) {
    const std::vector<Message> parts = {{comm.rank(), {}, {at::ones({2}, place(comm))}}};
    EXPECT_THROW(comm.exchange(parts, parts), c10::NotImplementedError);
    return;
  }
  const std::vector<std::vector<int64_t>> shapes = {{3, 4}, {0, 2}, {200, 150}, {1, 1}};
  const auto part = [&](int from, int to, size_t i) {
    return values(from, shapes[i][0] * shapes[i][1], at::kFloat, to + static_cast<int>(i)).view(shapes[i]);
  };
  for (const bool strided : {false, true}) {
    std::vector<Message> sends, receives;
    for (int peer = 0; peer < comm.size(); ++peer) {
      Message send{peer, {}}, receive{peer, {}};
      for (size_t i = 0; i < shapes.size(); ++i) {
        send.parts.push_back(part(comm.rank(), peer, i).to(place(comm)));
        if (strided && i % 2 == 0) send.parts[i] = send.parts[i].t().contiguous().t();
        const Tensor columns = at::zeros({shapes[i][1], shapes[i][0]}, place(comm));
        receive.parts.push_back(strided ? columns.t() : columns.view(shapes[i]));
      }
      sends.push_back(send);
      receives.push_back(receive);
    }
    comm.reset_stats();

    WorkPtr work = comm.exchange_async(sends, receives);
    if (strided) work->wait();
    work.reset();  // waits, unless it was waited for

    const CommStats::Count sent = comm.stats().total();
    EXPECT_EQ(sent.messages, comm.size() - 1);
    EXPECT_EQ(sent.bytes, (comm.size() - 1) * int64_t{4} * (12 + 30000 + 1));
    for (int peer = 0; peer < comm.size(); ++peer) {
      for (size_t i = 0; i < shapes.size(); ++i) {
        EXPECT_TRUE(same_values(receives[peer].parts[i], part(peer, comm.rank(), i)))
            << "part " << i << " from " << peer;
      }
    }
  }
}

// Halos of a ring, two exchanges and a reduction under way at the same time, waited for in the other order.
void exchange_overlaps_other_work(Communicator& comm) {
  const int right = (comm.rank() + 1) % comm.size();
  const int left = (comm.rank() + comm.size() - 1) % comm.size();
  for (const int64_t n : {100, 50000}) {
    Tensor from_left = at::zeros({n}, place(comm)), from_right = at::zeros({n}, place(comm));
    Tensor total = at::ones({5}, place(comm));
    std::vector<WorkPtr> under_way;

    under_way.push_back(
        comm.exchange_async({{right, values(comm.rank(), n, at::kFloat, 1).to(place(comm))}}, {{left, from_left}}));
    under_way.push_back(
        comm.exchange_async({{left, values(comm.rank(), n, at::kFloat, 2).to(place(comm))}}, {{right, from_right}}));
    comm.all_reduce(total);
    under_way[1]->wait();
    under_way[0]->wait();
    under_way[0]->wait();

    EXPECT_TRUE(same_values(from_left, values(left, n, at::kFloat, 1)));
    EXPECT_TRUE(same_values(from_right, values(right, n, at::kFloat, 2)));
    EXPECT_TRUE(same_values(total, at::full({5}, 1.0 * comm.size())));
  }
}

// Only some ranks have something to say, one dropped its Work without waiting.
void exchange_with_silent_ranks(Communicator& comm) {
  const int last = comm.size() - 1;
  Tensor got = at::zeros({30000}, place(comm));
  for (int i = 0; i < 3; ++i) {
    std::vector<Message> sends, receives;
    if (comm.rank() == 0) sends.push_back({last, at::full({30000}, i + 1.0, place(comm))});
    if (comm.rank() == last) receives.push_back({0, got});
    comm.exchange_async(sends, receives).reset();
  }
  comm.barrier();

  if (comm.rank() == last) {
    EXPECT_TRUE(same_values(got, at::full({30000}, 3.0)));
  }
}

void split_by_parity_and_reversed(Communicator& comm) {
  const CommunicatorPtr half = comm.split(comm.rank() % 2, -comm.rank());

  std::vector<std::string> members;
  for (int r = comm.size() - 1; r >= 0; --r) {
    if (r % 2 == comm.rank() % 2) members.push_back(std::to_string(r));
  }
  EXPECT_EQ(half->size(), static_cast<int>(members.size()));
  EXPECT_EQ(half->all_gather_strings(std::to_string(comm.rank())), members);
  EXPECT_STREQ(half->backend(), comm.backend());
}

// Rows, columns, and columns of rows: a 2-D mesh. Other sizes than four get a ragged one.
void split_into_rows_and_columns(Communicator& comm) {
  const CommunicatorPtr row = comm.split(comm.rank() / 2, comm.rank());
  const CommunicatorPtr column = comm.split(comm.rank() % 2, comm.rank());
  Tensor in_row = at::full({3}, 1 << comm.rank(), at::device(place(comm)).dtype(at::kLong)), in_column = in_row.clone(),
         everywhere = in_row.clone();

  row->all_reduce(in_row);
  column->all_reduce(in_column);
  comm.all_reduce(everywhere);

  int64_t of_row = 0, of_column = 0;
  for (int r = 0; r < comm.size(); ++r) {
    of_row += r / 2 == comm.rank() / 2 ? 1 << r : 0;
    of_column += r % 2 == comm.rank() % 2 ? 1 << r : 0;
  }
  EXPECT_EQ(in_row[0].item<int64_t>(), of_row);
  EXPECT_EQ(in_column[2].item<int64_t>(), of_column);
  EXPECT_EQ(everywhere[1].item<int64_t>(), (1 << comm.size()) - 1);
  EXPECT_EQ(column->split(0, 0)->size(), column->size());
}

void all_gather_strings(Communicator& comm) {
  const auto text = [](int rank) {
    return std::string(static_cast<size_t>(rank % 3) * 1500, static_cast<char>('a' + rank));
  };

  const std::vector<std::string> all = comm.all_gather_strings(text(comm.rank()));

  ASSERT_EQ(static_cast<int>(all.size()), comm.size());
  for (int r = 0; r < comm.size(); ++r) EXPECT_EQ(all[r], text(r));
}

void counts_what_leaves_the_rank(Communicator& comm) {
  const int n = comm.size();
  const int me = comm.rank();
  const auto expect = [&](CommStats::Kind kind, int64_t messages, int64_t bytes) {
    const CommStats::Count& count = comm.stats().by_kind[kind];
    EXPECT_EQ(count.calls, n == 1 ? 0 : 1) << CommStats::name(kind);
    EXPECT_EQ(count.messages, messages) << CommStats::name(kind);
    EXPECT_EQ(count.bytes, bytes) << CommStats::name(kind);
  };
  const Counts counts = uneven(n, 2);
  Tensor data = at::ones({12 * n}, place(comm)), part = at::ones({counts[me]}, place(comm));
  Tensor all = at::ones({sum(counts)}, place(comm)), turned = data.clone();
  const CommunicatorPtr again = comm.split(0, comm.rank());
  comm.reset_stats();

  comm.exchange({{(me + 1) % n, data}, {me, data}}, {{(me + n - 1) % n, data.clone()}, {me, data.clone()}});
  comm.all_reduce(data);
  comm.all_gather(part, counts, all);
  comm.reduce_scatter(all, counts, part);
  again->all_to_all(data, Counts(n, 12), turned, Counts(n, 12));
  comm.broadcast(data, 0);
  again->barrier();

  expect(CommStats::kExchange, n == 1 ? 0 : 1, n == 1 ? 0 : 48 * n);
  const auto rounds = static_cast<int64_t>(std::ceil(std::log2(n)));
  expect(CommStats::kAllReduce, rounds, 2 * (n - 1) * 48);
  expect(CommStats::kAllGather, rounds, counts[me] * 4 * (n - 1));
  if (n < 5) expect(CommStats::kReduceScatter, rounds, (sum(counts) - counts[me]) * 4);
  expect(CommStats::kAllToAll, n - 1, (n - 1) * 48);
  if (me == 0 || me == n - 1) expect(CommStats::kBroadcast, me == 0 ? rounds : 0, me == 0 ? rounds * 48 * n : 0);
  expect(CommStats::kBarrier, 0, 0);
  EXPECT_EQ(again->stats().total().bytes, comm.stats().total().bytes);
  EXPECT_EQ(comm.stats().total().calls, n == 1 ? 0 : 7);
}

void refuses_what_does_not_fit(Communicator& comm) {
  Tensor data = at::ones({6}), out = at::ones({6 * comm.size()}), complex = at::ones({2}, at::kComplexFloat);
  const Counts six(comm.size(), 6);

  EXPECT_THROW(comm.all_gather(data, Counts(comm.size() + 1, 6), out), c10::ValueError);
  EXPECT_THROW(comm.all_gather(data, Counts(comm.size(), 5), out), c10::ValueError);
  Tensor wide = out.to(at::kDouble);
  EXPECT_THROW(comm.all_gather(data, six, wide), c10::TypeError);
  EXPECT_THROW(comm.reduce_scatter(data, Counts(comm.size(), -1), data), c10::ValueError);
  EXPECT_THROW(comm.all_reduce(complex, ReduceOp::kMax), c10::TypeError);
  Tensor integers = at::ones({2}, at::kInt);
  EXPECT_THROW(comm.all_reduce(integers, ReduceOp::kAvg), c10::TypeError);
  Tensor transposed = at::ones({2, 3}).t();
  EXPECT_THROW(comm.all_reduce(transposed), c10::ValueError);
  EXPECT_THROW(comm.broadcast(data, comm.size()), c10::ValueError);
  EXPECT_THROW(comm.exchange({{comm.size(), data}}, {}), c10::ValueError);
  EXPECT_THROW(comm.exchange({{comm.rank(), data}}, {}), c10::ValueError);
  EXPECT_THROW(comm.split(-1, 0), c10::ValueError);
  Tensor undefined;
  EXPECT_THROW(comm.all_reduce(undefined), c10::ValueError);
  EXPECT_NO_THROW(comm.barrier());
}

void barrier_many_times(Communicator& comm) {
  for (int i = 0; i < 200; ++i) comm.barrier();
  Tensor data = at::ones({1}, place(comm));
  for (int i = 0; i < 100; ++i) {
    comm.all_reduce(data);
    data.div_(comm.size());
  }
  EXPECT_EQ(data.item<double>(), 1);
}

}  // namespace

const std::vector<VerbCase>& verb_cases() {
  static const std::vector<VerbCase> cases = {
      {"all_reduce", all_reduce},
      {"all_reduce_keeps_shape_and_gives_nan_to_all", all_reduce_keeps_shape_and_gives_nan_to_all},
      {"all_gather", all_gather},
      {"reduce_scatter", reduce_scatter},
      {"all_to_all", all_to_all},
      {"broadcast", broadcast},
      {"exchange", exchange},
      {"exchange_of_parts", exchange_of_parts},
      {"exchange_overlaps_other_work", exchange_overlaps_other_work},
      {"exchange_with_silent_ranks", exchange_with_silent_ranks},
      {"split_by_parity_and_reversed", split_by_parity_and_reversed},
      {"split_into_rows_and_columns", split_into_rows_and_columns},
      {"all_gather_strings", all_gather_strings},
      {"counts_what_leaves_the_rank", counts_what_leaves_the_rank},
      {"refuses_what_does_not_fit", refuses_what_does_not_fit},
      {"barrier_many_times", barrier_many_times},
  };
  return cases;
}

}  // namespace moonhalo::testing
