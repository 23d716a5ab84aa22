// SPDX-License-Identifier: Apache-2.0
// Host time of sharded operators above plain ones on tensors so small that nothing else counts. One rank: what is
// measured is the dispatcher, not communication.
//   bench_dispatch                        times and allocations per call; medians of interleaved rounds. "first ns" is
//                                         a whole call whose decision is not cached
//   bench_dispatch --instructions [FILE]  instructions per call, the same at any load, against a recorded table; exit
//                                         status 1 when an operator costs 10 % more above plain than recorded, 77 when
//                                         the table was recorded with another LibTorch or compiler
//   bench_dispatch --check [FILE]         the quick half of it, for CTest: only what no processor changes, which are
//                                         the instructions of Moonhalo's own library and the allocations above plain;
//                                         and that plain calls run nothing of Moonhalo's (S08)
//   bench_dispatch --record [FILE]        writes that table (default: tests/bench/dispatch_instructions.txt)
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/moonhalo.h"
#include "tests/bench/instructions.h"

namespace {

thread_local int64_t allocations = 0;

}  // namespace

// Every allocation passes here, operator new and LibTorch's own included.
extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}

namespace {

namespace mh = moonhalo;
using Tensors = std::vector<at::Tensor>;
using Op = std::function<void(const Tensors&)>;

constexpr double kInPlace = 500, kLocal = 1000, kConv = 3000;
constexpr int64_t kOneCheck = 150;  // see ops/support/interceptions.cpp
constexpr int64_t kPlain = -2, kReplicated = -1;

struct Row {
  std::string name;
  double target_ns;  // above plain
  Tensors inputs;
  std::vector<int64_t> cut;  // per input: the dim that is cut, or kReplicated or kPlain
  Op op;
  bool grad = false;
  int64_t plain_own =
      0;  // instructions of Moonhalo's library that a call of plain tensors may run: it is intercepted above autograd
};

std::vector<Row> in_place_rows() {
  const at::Tensor x = at::linspace(-1, 1, 16).view({4, 4}), y = x + 2;
  return {
      {"add_", kInPlace, {x, y * 0}, {0, 0}, [](const Tensors& t) { t[0].add_(t[1]); }},
      {"add_replicated", kInPlace, {x, y * 0}, {0, kReplicated}, [](const Tensors& t) { t[0].add_(t[1]); }},
      {"add_scalar_", kInPlace, {x}, {0}, [](const Tensors& t) { t[0].add_(1); }},
      {"mul_", kInPlace, {x, at::ones({4, 4})}, {0, kReplicated}, [](const Tensors& t) { t[0].mul_(t[1]); }},
      {"mul_scalar_", kInPlace, {x}, {0}, [](const Tensors& t) { t[0].mul_(1.0); }},
      {"addcmul_", kInPlace, {x, x, y}, {0, 0, 0}, [](const Tensors& t) { t[0].addcmul_(t[1], t[2]); }},
      {"copy_", kInPlace, {x, y}, {0, 0}, [](const Tensors& t) { t[0].copy_(t[1]); }},
      {"zero_", kInPlace, {x}, {0}, [](const Tensors& t) { t[0].zero_(); }},
      {"fill_", kInPlace, {x}, {0}, [](const Tensors& t) { t[0].fill_(1); }},
  };
}

std::vector<Row> elementwise_rows() {
  const at::Tensor x = at::linspace(-1, 1, 16).view({4, 4}), y = x + 2, mask = x > 0;
  return {
      {"add", kLocal, {x, y}, {0, kReplicated}, [](const Tensors& t) { at::add(t[0], t[1]); }},
      {"mul", kLocal, {x, y}, {0, 0}, [](const Tensors& t) { at::mul(t[0], t[1]); }},
      {"div", kLocal, {x, y}, {0, 0}, [](const Tensors& t) { at::div(t[0], t[1]); }},
      {"mul_scalar", kLocal, {x}, {0}, [](const Tensors& t) { at::mul(t[0], 2); }},
      {"relu", kLocal, {x}, {0}, [](const Tensors& t) { at::relu(t[0]); }},
      {"gelu", kLocal, {x}, {0}, [](const Tensors& t) { at::gelu(t[0]); }},
      {"sigmoid", kLocal, {x}, {0}, [](const Tensors& t) { at::sigmoid(t[0]); }},
      {"exp", kLocal, {x}, {0}, [](const Tensors& t) { at::exp(t[0]); }},
      {"where", kLocal, {mask, x, y}, {0, 0, 0}, [](const Tensors& t) { at::where(t[0], t[1], t[2]); }},
  };
}

std::vector<Row> reduction_rows() {
  const at::Tensor x = at::linspace(-1, 1, 16).view({4, 4}), b = at::ones({4}),
                   batch = at::linspace(-1, 1, 32).view({2, 4, 2, 2});
  return {
      {"sum", kLocal, {x}, {0}, [](const Tensors& t) { t[0].sum(); }},
      {"sum_dim", kLocal, {x}, {0}, [](const Tensors& t) { t[0].sum(1); }},
      {"mean", kLocal, {x}, {0}, [](const Tensors& t) { t[0].mean(); }},
      {"amax", kLocal, {x}, {0}, [](const Tensors& t) { t[0].amax(1); }},
      {"var", kLocal, {x}, {0}, [](const Tensors& t) { t[0].var(1); }},
      {"softmax", kLocal, {x}, {0}, [](const Tensors& t) { at::softmax(t[0], 1); }},
      {"layer_norm",
       kLocal,
       {x, b, b},
       {0, kReplicated, kReplicated},
       [](const Tensors& t) { at::layer_norm(t[0], {4}, t[1], t[2]); }},
      {"group_norm",
       kLocal,
       {batch, b, b},
       {0, kReplicated, kReplicated},
       [](const Tensors& t) { at::group_norm(t[0], 2, t[1], t[2]); }},
  };
}

std::vector<Row> view_rows() {
  const at::Tensor x = at::linspace(-1, 1, 16).view({4, 4}), cube = at::linspace(-1, 1, 32).view({4, 2, 4});
  return {
      {"view",
       kLocal,
       {x},
       {0},
       [](const Tensors& t) {
         t[0].view({4, 2, 2});
       }},
      {"reshape",
       kLocal,
       {x},
       {0},
       [](const Tensors& t) {
         t[0].reshape({4, 2, 2});
       }},
      {"transpose", kLocal, {x}, {0}, [](const Tensors& t) { t[0].transpose(0, 1); }},
      {"permute",
       kLocal,
       {cube},
       {0},
       [](const Tensors& t) {
         t[0].permute({1, 0, 2});
       }},
      {"slice", kLocal, {x}, {0}, [](const Tensors& t) { t[0].slice(1, 1, 3); }},
      {"select", kLocal, {x}, {0}, [](const Tensors& t) { t[0].select(1, 1); }},
      {"unsqueeze", kLocal, {x}, {0}, [](const Tensors& t) { t[0].unsqueeze(1); }},
      {"expand",
       kLocal,
       {cube.slice(1, 0, 1)},
       {0},
       [](const Tensors& t) {
         t[0].expand({4, 3, 4});
       }},
  };
}

std::vector<Row> copy_rows() {
  const at::Tensor x = at::linspace(-1, 1, 16).view({4, 4}), y = x + 2;
  return {
      {"cat",
       kLocal,
       {x, y},
       {0, 0},
       [](const Tensors& t) {
         at::cat({t[0], t[1]}, 1);
       }},
      {"stack",
       kLocal,
       {x, y},
       {0, 0},
       [](const Tensors& t) {
         at::stack({t[0], t[1]}, 1);
       }},
      {"clone", kLocal, {x}, {0}, [](const Tensors& t) { t[0].clone(); }},
      {"to_double", kLocal, {x}, {0}, [](const Tensors& t) { t[0].to(at::kDouble); }},
      {"zeros_like", kLocal, {x}, {0}, [](const Tensors& t) { at::zeros_like(t[0]); }},
  };
}

std::vector<Row> product_rows() {
  const at::Tensor x = at::linspace(-1, 1, 16).view({4, 4}), y = x + 2, b = at::ones({4}), index = at::arange(4);
  return {
      {"mm", kLocal, {x, y}, {0, kReplicated}, [](const Tensors& t) { at::mm(t[0], t[1]); }},
      {"matmul", kLocal, {x, y}, {0, kReplicated}, [](const Tensors& t) { at::matmul(t[0], t[1]); }, false, kOneCheck},
      {"linear",
       kLocal,
       {x, y, b},
       {0, kReplicated, kReplicated},
       [](const Tensors& t) { at::linear(t[0], t[1], t[2]); },
       false,
       kOneCheck},
      {"linear_plain_weights",
       kLocal,
       {x, y, b},
       {0, kPlain, kPlain},
       [](const Tensors& t) { at::linear(t[0], t[1], t[2]); },
       false,
       kOneCheck},
      {"index_select", kLocal, {x, index}, {0, kPlain}, [](const Tensors& t) { t[0].index_select(1, t[1]); }},
      {"embedding", kLocal, {y, index}, {kReplicated, 0}, [](const Tensors& t) { at::embedding(t[0], t[1]); }},
      {"dropout", kLocal, {x}, {0}, [](const Tensors& t) { at::dropout(t[0], 0.5, true); }},
  };
}

std::vector<Row> window_and_loss_rows() {
  const at::Tensor x = at::linspace(-1, 1, 16).view({4, 4}), y = x + 2, image = at::zeros({1, 1, 4, 4}),
                   kernel = at::zeros({1, 1, 3, 3}), one = at::zeros({1});
  return {
      {"conv2d",
       kConv,
       {image, kernel, one},
       {2, kReplicated, kReplicated},
       [](const Tensors& t) { at::conv2d(t[0], t[1], t[2], 1, 1); }},
      {"max_pool2d", kLocal, {image}, {2}, [](const Tensors& t) { at::max_pool2d(t[0], 2); }},
      {"mse_loss", kLocal, {x, y}, {0, 0}, [](const Tensors& t) { at::mse_loss(t[0], t[1]); }},
      // Three operators: the sum, the seed of the gradient and its expansion.
      {"sum_backward",
       3 * kLocal,
       {x},
       {0},
       [](const Tensors& t) { torch::autograd::grad({t[0].sum()}, {t[0]}); },
       true},
  };
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const auto& group : {in_place_rows(), elementwise_rows(), reduction_rows(), view_rows(), copy_rows(),
                            product_rows(), window_and_loss_rows()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

double nanoseconds(const Row& row, const Tensors& inputs, int calls) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) row.op(inputs);
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs `measure` for every row with its plain and its sharded inputs, warmed up.
void each_row(const std::function<void(const Row&, const Tensors& plain, const Tensors& sharded)>& measure) {
  at::set_num_threads(1);
  mh::run_ranks(
      1,
      [&](mh::Communicator& world) {
        const auto mesh = mh::init_device_mesh(world, "cpu", {1});
        for (const Row& row : rows()) {
          const c10::AutoGradMode mode(row.grad);
          Tensors plain, sharded;
          for (size_t i = 0; i < row.inputs.size(); ++i) {
            const at::Tensor& input = plain.emplace_back(row.inputs[i].clone());
            const int64_t cut = row.cut[i];
            sharded.push_back(cut == kPlain
                                  ? input
                                  : mh::distribute_tensor(input, mesh, {cut < 0 ? mh::replicate() : mh::shard(cut)}));
            if (row.grad) {
              sharded[i].requires_grad_();
              input.requires_grad_();
            }
          }
          nanoseconds(row, plain, 20);
          nanoseconds(row, sharded, 20);
          measure(row, plain, sharded);
        }
      },
      1);
}

int print_times(const std::string& only) {
  std::printf("%-22s %9s %9s %9s %8s %9s %8s %8s\n", "operator", "plain ns", "shard ns", "above ns", "target",
              "first ns", "allocs", "sharded");
  int over = 0;
  each_row([&](const Row& row, const Tensors& plain, const Tensors& sharded) {
    if (row.name.find(only) == std::string::npos) return;
    const auto allocated = [&](const Tensors& inputs) {
      const int64_t before = allocations;
      row.op(inputs);
      return allocations - before;
    };
    const int64_t plain_allocations = allocated(plain), sharded_allocations = allocated(sharded);
    constexpr int kCalls = 500, kRounds = 41;
    std::vector<double> plain_ns, shard_ns, above_ns, first_ns;
    for (int round = 0; round < kRounds; ++round) {
      plain_ns.push_back(nanoseconds(row, plain, kCalls));
      shard_ns.push_back(nanoseconds(row, sharded, kCalls));
      above_ns.push_back(shard_ns.back() - plain_ns.back());
      for (int i = 0; i < 3; ++i) {
        mh::Dispatch::of_this_thread().clear();
        first_ns.push_back(nanoseconds(row, sharded, 1));
      }
      nanoseconds(row, sharded, 1);
    }
    const bool slow = median(above_ns) > row.target_ns || median(first_ns) > 20'000;
    over += slow;
    std::printf("%-22s %9.0f %9.0f %9.0f %8.0f %9.0f %8ld %8ld%s\n", row.name.c_str(), median(plain_ns),
                median(shard_ns), median(above_ns), row.target_ns, median(first_ns), plain_allocations,
                sharded_allocations, slow ? "  *" : "");
  });
  std::printf("%d operators over a target (first: 20000 ns)\n", over);
  return 0;
}

struct Counted {
  int64_t plain = 0, sharded = 0, first = 0, own = 0, allocations = 0;
  int64_t above() const { return sharded - plain; }
};

Counted count_quick(const Row& row, const Tensors& plain, const Tensors& sharded) {
  const auto allocated = [&](const Tensors& inputs) {
    const int64_t before = allocations;
    row.op(inputs);
    return allocations - before;
  };
  Counted counted;
  counted.allocations = allocated(sharded) - allocated(plain);
  const auto run = mh::bench::instructions_of([&] { row.op(sharded); });
  counted.sharded = run.all;
  counted.own = run.own;
  return counted;
}

Counted count_all(const Row& row, const Tensors& plain, const Tensors& sharded) {
  Counted counted = count_quick(row, plain, sharded);
  counted.plain = mh::bench::instructions_of([&] { row.op(plain); }).all;
  mh::Dispatch::of_this_thread().clear();
  counted.first = mh::bench::instructions_of([&] { row.op(sharded); }).all;
  return counted;
}

std::string made_with() { return std::string("LibTorch ") + TORCH_VERSION + ", compiler " + __VERSION__; }

int record(const std::string& path) {
  std::ofstream file(path);
  TORCH_CHECK(file, "bench_dispatch: cannot write ", path);
  file << "# Instructions per call: plain, sharded, sharded with no decision cached, of the sharded call those in "
          "Moonhalo's library;\n"
       << "# allocations above plain. Written by bench_dispatch --record.\n"
       << "# " << made_with() << "\n";
  each_row([&](const Row& row, const Tensors& plain, const Tensors& sharded) {
    const Counted counted = count_all(row, plain, sharded);
    file << row.name << " " << counted.plain << " " << counted.sharded << " " << counted.first << " " << counted.own
         << " " << counted.allocations << "\n";
  });
  std::printf("recorded in %s\n", path.c_str());
  return 0;
}

struct Table {
  std::map<std::string, Counted> rows;
  bool same_tools = false;
};

Table read_table(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "bench_dispatch: cannot read ", path, "\n  fix   run it from the repository, or name the table");
  Table table;
  std::string line;
  while (std::getline(file, line)) {
    if (line == "# " + made_with()) table.same_tools = true;
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    Counted counted;
    TORCH_CHECK(
        words >> name >> counted.plain >> counted.sharded >> counted.first >> counted.own >> counted.allocations,
        "bench_dispatch: not a row: ", line);
    table.rows[name] = counted;
  }
  return table;
}

int verdict(const Table& table, int worse) {
  std::printf("%d operators above the recorded table by more than 10 %%\n", worse);
  if (table.same_tools) return worse > 0;
  std::printf("not judged: the table was recorded with another LibTorch or compiler than %s\n", made_with().c_str());
  return 77;
}

// A handful of instructions comes and goes with where memory is.
bool grew(int64_t now, int64_t before) { return now > before * 11 / 10 + 30; }

int compare(const std::string& path) {
  const Table table = read_table(path);
  std::printf("%-22s %8s %8s %8s %8s %7s %8s %8s %7s\n", "operator", "plain", "sharded", "above", "recorded", "ratio",
              "first", "recorded", "ratio");
  int worse = 0;
  each_row([&](const Row& row, const Tensors& plain, const Tensors& sharded) {
    const Counted now = count_all(row, plain, sharded);
    const auto found = table.rows.find(row.name);
    const bool known = found != table.rows.end();
    const Counted before = known ? found->second : Counted{};
    // gelu goes through oneDNN, whose own tables make its count vary by more than we could see.
    const bool judged = row.name != "gelu";
    const bool fails = judged && (!known || grew(now.above(), before.above()) || grew(now.first, before.first));
    worse += fails;
    std::printf("%-22s %8ld %8ld %8ld %8ld %7.2f %8ld %8ld %7.2f%s\n", row.name.c_str(), now.plain, now.sharded,
                now.above(), before.above(), double(now.above()) / double(std::max<int64_t>(before.above(), 1)),
                now.first, before.first, double(now.first) / double(std::max<int64_t>(before.first, 1)),
                !known  ? "  not recorded"
                : fails ? "  *"
                        : "");
  });
  return verdict(table, worse);
}

// S08: a call of plain tensors runs nothing of Moonhalo but the checks of what is intercepted, whichever compiler made
// the table.
int64_t plain_cost(const Row& row, const Tensors& plain) {
  const int64_t own = mh::bench::instructions_of([&] { row.op(plain); }).own;
  if (own <= row.plain_own && (own > 0 || row.plain_own == 0)) return 0;
  std::printf("%s: a call of plain tensors runs %ld instructions of Moonhalo's, and may run %s%ld\n", row.name.c_str(),
              own, row.plain_own == 0 ? "" : "1 to ", row.plain_own);
  return 1;
}

int check(const std::string& path) {
  // Instructions; the few above cost as much as all others.
  constexpr int64_t kQuick = 17'000, kQuickPlain = 20'000;
  const Table table = read_table(path);
  int64_t worse = 0, judged = 0, dearer = 0;
  each_row([&](const Row& row, const Tensors& plain, const Tensors& sharded) {
    const auto found = table.rows.find(row.name);
    if (found == table.rows.end() || found->second.plain <= kQuickPlain) dearer += plain_cost(row, plain);
    if (found != table.rows.end() && found->second.sharded > kQuick) return;
    ++judged;
    const Counted before = found == table.rows.end() ? Counted{} : found->second,
                  now = count_quick(row, plain, sharded);
    if (!grew(now.own, before.own) && now.allocations <= before.allocations) return;
    ++worse;
    std::printf(
        "%s: a cached call costs more than recorded\n  have  %ld instructions of Moonhalo's own (recorded %ld), %ld "
        "allocations "
        "above plain (recorded %ld)\n  fix   make the hot path shorter; where the price is meant: ./dev bench dispatch "
        "--record\n",
        row.name.c_str(), now.own, before.own, now.allocations, before.allocations);
  });
  std::printf("%ld operators judged; plain calls of %ld cost more than they may\n", judged, dearer);
  return dearer > 0 ? 1 : verdict(table, static_cast<int>(worse));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::string path = argc > 2 ? argv[2] : "tests/bench/dispatch_instructions.txt";
  if (mode != "--instructions" && mode != "--record" && mode != "--check") return print_times(mode);
  if (!mh::bench::kCountsInstructions) {
    std::printf("not judged: instructions are counted on x86-64 only\n");
    return 77;
  }
  mh::bench::own_code(reinterpret_cast<const void*>(&mh::set_fallback));
  if (mode == "--check") return check(path);
  return mode == "--record" ? record(path) : compare(path);
}
