// SPDX-License-Identifier: Apache-2.0
// A host in C++11 without LibTorch (X15):  mpirun -n N embed_session SCRIPT
#include <moonhalo/session.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

mh_status failure(moonhalo::Session& session, const char* function, const char* text) {
  try {
    session.call(function);
  } catch (const moonhalo::SessionError& error) {
    expect(std::strstr(error.what(), text) != nullptr, text);
    return error.status();
  }
  return MH_OK;
}

void run(MPI_Comm comm, const char* script) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  std::vector<double> u(6, rank);
  mh_options options = MH_OPTIONS;
  options.script = script;
  options.mpi_comm = &comm;
  mh_block block{};
  block.size = sizeof(block);
  block.data = u.data();
  block.dtype = MH_FLOAT64;
  block.ndim = 1;
  block.extent[0] = 6;
  block.begin[0] = 6 * rank;

  moonhalo::Session first(options);
  moonhalo::Session session = std::move(first);
  session.field("u", block);
  session.call("add", {'u', 0.5});
  session.sync();
  expect(u[5] == rank + 0.5, "the script wrote into the vector");
  expect(session.call("half", {3}, 1)[0] == 1.5, "a number in and out");
  // Ghosts that the program fills: a stencil reads them, and sends nothing.
  std::vector<double> rows(4 * 7, 0.25);
  mh_block filled = moonhalo::make_block(rows.data(), {4, 7}, {1, 1}, {2 * rank, 0});
  session.field("u", filled);
  const std::vector<double> sent = session.call("smooth", {}, 2);
  filled.ghosts_filled = 1;
  session.field("u", filled);
  expect(session.report().find("ghosts filled") != std::string::npos, "the report names filled ghosts");
  const std::vector<double> read = session.call("smooth", {}, 2);
  int ranks = 0;
  MPI_Comm_size(comm, &ranks);
  expect(sent[0] == read[0] && (ranks == 1 || (sent[1] > 0 && read[1] == 0)),
         "filled ghosts are read in place of messages");
  std::vector<float> box(3, 1.5F);
  session.boxes("f", {moonhalo::make_block(box.data(), {3}, {}, {3 * rank})});
  session.call("add", {'f', 2});
  expect(box[2] == 3.5F, "the script wrote into a box");
  int level = 0;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) {
    session.call_begin("half", {5});
    expect(session.call_end(1)[0] == 2.5, "a call beside the program");
  }
  expect(failure(session, "fails", "the pressure is negative") == MH_SCRIPT, "an error of the script is thrown");
  std::thread([&] {
    expect(failure(session, "half", "called from another thread") == MH_USAGE, "another thread may not call");
  }).join();
  session.unregister("u");
  expect(failure(session, "trian", "did you mean 'train'?") == MH_USAGE, "the status is kept");
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  run(MPI_COMM_WORLD, argc > 1 ? argv[1] : "");
  MPI_Finalize();
}
