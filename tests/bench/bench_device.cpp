// SPDX-License-Identifier: Apache-2.0
// Counts what a rank asks of its device, a simulated one (tests/support/fake_device.h), so that the numbers are the
// same on every machine: for a training step of a U-Net on blocks of rows, and for one exchange of edges with 2, 8
// and 26 neighbours.
//   launches   kernels, and copies on the device
//   copies     between the device and the host; bytes: what they carry
//   waits      the host waits for the device
//   calls      collectives and exchanges. Staged through memory of the host each costs a wait, so waits - calls is what
//              the engine itself waits for: it has to be 0. By NCCL (a double of it) nothing may wait
//   bench_device                      prints the counts, and which operators are launched
//   bench_device --check [FILE]       compares with a recorded table; exit status 1 when something is asked more often
//                                     than recorded, or counts of 2 and 8 ranks differ
//   bench_device --record [FILE]      writes that table (default: tests/bench/device_counts.txt)
#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/moonhalo.h"
#include "tests/bench/models.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_nccl.h"

namespace {

namespace mh = moonhalo;
namespace fake = mh::testing::fake;

struct Row {
  fake::Counts device;
  int64_t calls = 0;
  bool by_nccl = false;
  std::map<std::string, int64_t> operators;
};
using Table = std::vector<std::pair<std::string, Row>>;

// Counts of the third time, when decisions, plans and buffers are there.
Row counts_of(mh::Communicator& world, const std::function<void()>& work) {
  work();
  work();
  Row row;
  const fake::Counts before = fake::counts();
  const auto launched = fake::launches_by_operator();
  const int64_t calls = world.stats().total().calls;
  work();
  row.device = fake::counts() - before;
  row.calls = world.stats().total().calls - calls;
  for (const auto& [name, count] : fake::launches_by_operator()) {
    const auto found = launched.find(name);
    const int64_t more = count - (found == launched.end() ? 0 : found->second);
    if (more > 0) row.operators[name] = more;
  }
  return row;
}

// Blocks of 16 rows. Rank 0 is asked: it has one neighbour, however many ranks there are.
Row step_of_u_net(int ranks, bool by_nccl) {
  Row row;
  mh::set_nccl_api(by_nccl ? &fake::nccl() : nullptr);
  mh::run_ranks(ranks, [&](mh::Communicator& world) {
    const mh::MeshPtr mesh = mh::init_device_mesh(world, "fake", {ranks}, {"rows"});
    const c10::Device device = fake::device(world.rank());
    mh::bench::UNet net;
    mh::bench::same_weights(*net);
    mh::parallelize_module(net.ptr(), mesh, {});
    torch::optim::AdamW optimizer(net->parameters(), 1e-4);
    const at::Tensor x = mh::from_local(at::ones({1, mh::bench::kFieldChannels, 16, 32}, device), mesh, {mh::shard(2)});
    const Row mine = counts_of(mesh->group(), [&] {
      optimizer.zero_grad();
      net->forward(x).square().mean().backward();
      optimizer.step();
    });
    if (world.rank() == 0) row = mine;
  });
  mh::set_nccl_api(nullptr);
  row.by_nccl = by_nccl;
  return row;
}

// The edges of a 3 x 3 (x 3) window on the middle block of 3 in each of `dims` dims, or their gradients.
Row exchange(int dims, bool back) {
  int ranks = 1;
  for (int d = 0; d < dims; ++d) ranks *= 3;
  Row row;
  mh::run_ranks(ranks, [&](mh::Communicator& world) {
    const mh::MeshPtr mesh = mh::init_device_mesh(world, "fake:0", std::vector<int64_t>(dims, 3));
    std::vector<mh::Placement> placements;
    for (int d = 0; d < dims; ++d) placements.push_back(mh::shard(2 + d));
    std::vector<int64_t> shape{1, 4};
    shape.insert(shape.end(), dims, 12);
    const mh::SpecPtr spec = mh::make_spec(mesh, shape, placements);
    const mh::IntervalMap map(spec, [&](int64_t rank) {
      std::vector<mh::HaloRequest> requests = mh::requests_for(mh::block_box(*spec, rank));
      for (int d = 0; d < dims; ++d) {
        mh::Interval& rows = requests[2 + d].rows;
        rows = {rows.begin - 1, rows.end + 1};
      }
      return requests;
    });
    const auto ones = [](at::IntArrayRef of) { return at::ones(of, fake::device(0)); };
    const at::Tensor owned = ones(spec->local_shape()), grad = ones(map.needed_shape());
    const Row mine = counts_of(mesh->group(), [&] { back ? mh::scatter_add(map, grad) : mh::gather(map, owned); });
    if (world.rank() == ranks / 2) row = mine;
  });
  return row;
}

Table counted() {
  fake::install();
  Table table;
  for (const bool by_nccl : {false, true}) {
    for (const int ranks : {2, 8})
      table.emplace_back((by_nccl ? "u_net_nccl_on_" : "u_net_staged_on_") + std::to_string(ranks),
                         step_of_u_net(ranks, by_nccl));
  }
  const char* const neighbours[] = {"2", "8", "26"};
  for (const bool back : {false, true}) {
    for (int dims = 1; dims <= 3; ++dims)
      table.emplace_back((back ? "gradients_to_" : "edges_of_") + std::string(neighbours[dims - 1]),
                         exchange(dims, back));
  }
  return table;
}

using Field = std::pair<const char*, int64_t>;
std::vector<Field> fields(const Row& row) {
  const fake::Counts& c = row.device;
  return {{"launches", c.launches}, {"copies", c.host_copies}, {"bytes", c.host_bytes},
          {"waits", c.host_waits},  {"events", c.events},      {"calls", row.calls}};
}

void print(const Table& table) {
  std::printf("%-18s", "");
  for (const auto& [field, count] : fields(table[0].second)) std::printf(" %9s", field);
  std::printf("\n");
  for (const auto& [name, row] : table) {
    std::printf("%-18s", name.c_str());
    for (const auto& [field, count] : fields(row)) std::printf(" %9ld", count);
    std::printf("\n");
  }
  for (const auto& [name, row] : table) {
    std::printf("\n%s launches\n", name.c_str());
    for (const auto& [op, count] : row.operators) std::printf("%5ld %s\n", count, op.c_str());
  }
}

int record(const Table& table, const std::string& path) {
  std::ofstream file(path);
  file << "# Asked of its device by a rank. Written by bench_device --record.\n"
          "# Staged calls cost one wait of the host each, since messages go through its memory; nothing else waits.\n#";
  for (const auto& [field, count] : fields(table[0].second)) file << " " << field;
  file << "\n";
  for (const auto& [name, row] : table) {
    file << name;
    for (const auto& [field, count] : fields(row)) file << " " << count;
    file << "\n";
  }
  file.close();
  return file ? 0 : 1;
}

std::map<std::string, std::vector<int64_t>> read_table(const std::string& path) {
  std::ifstream file(path);
  std::map<std::string, std::vector<int64_t>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    if (line[0] == '#' || !(words >> name)) continue;
    for (int64_t count = 0; words >> count;) rows[name].push_back(count);
  }
  return rows;
}

int complain(const std::string& what, const std::string& have, const char* fix) {
  std::printf("%s\n  have  %s\n  fix   %s\n", what.c_str(), have.c_str(), fix);
  return 1;
}

// Whatever is recorded.
int check_targets(const Table& table) {
  int wrong = 0;
  std::map<bool, const Row*> steps;
  for (const auto& [name, row] : table) {
    const fake::Counts& c = row.device;
    if (c.host_waits > (row.by_nccl ? 0 : row.calls)) {
      wrong += complain(name + ": the host waits for the device beside what its messages cost",
                        std::to_string(c.host_waits) + " waits, " + std::to_string(row.calls) + " calls",
                        "find the operator that reads a number, or makes a tensor of numbers of the host");
    }
    // Packed, unpacked or added, and the owned block copied.
    if (row.calls == 1 && c.launches > 3) {
      wrong += complain(name + ": an exchange takes more than three launches", std::to_string(c.launches) + " launches",
                        "pack all regions for all neighbours at once");
    }
    if (row.calls == 1) continue;
    const auto [first, is_first] = steps.emplace(row.by_nccl, &row);
    const Row& other = *first->second;
    const fake::Counts d = c - other.device;
    if (!is_first &&
        (d.launches != 0 || d.host_copies != 0 || d.host_waits != 0 || d.events != 0 || row.calls != other.calls))
      wrong += complain(name + ": counts depend on the number of ranks", "other counts on 2 ranks", "see the table");
  }
  return wrong;
}

int check(const Table& table, const std::string& path) {
  const auto recorded = read_table(path);
  int wrong = check_targets(table);
  for (const auto& [name, row] : table) {
    const auto found = recorded.find(name);
    const std::vector<Field> now = fields(row);
    for (size_t i = 0; i < now.size(); ++i) {
      const int64_t before = found != recorded.end() && i < found->second.size() ? found->second[i] : 0;
      if (now[i].second <= before) continue;
      wrong += complain(name + ": more " + now[i].first + " than recorded",
                        std::to_string(now[i].second) + ", recorded " + std::to_string(before),
                        "ask less of the device; where the price is meant: ./dev bench device --record");
    }
  }
  std::printf("%zu rows compared, %d complaints\n", table.size(), wrong);
  return wrong > 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "", path = argc > 2 ? argv[2] : "tests/bench/device_counts.txt";
  const Table table = counted();
  print(table);
  if (mode == "--record") return record(table, path);
  return mode == "--check" ? check(table, path) : 0;
}
