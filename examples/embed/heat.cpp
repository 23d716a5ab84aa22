// SPDX-License-Identifier: Apache-2.0
// heat.c in C++11, without LibTorch.
// shows:
//  * a session is an object, an error an exception, and vectors are registered where they are
//  * a network trains in situ on what the solver computes, then advances the same array
//
//     mpirun -n 4 heat_cpp surrogate.lua [LEAPS]          LEAPS of training, 1200 if not given
#include <moonhalo/session.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "heat_blocks.h"

namespace {

/// Over the solver's communicator, or over functions of its MPI where that is not the one of Moonhalo's build.
moonhalo::Session start_session(const MPI_Comm& comm, const char* script, mh_transport& transport) {
  mh_options options = MH_OPTIONS;
  options.script = script;
  options.settings = "lr=1e-2";
  options.mpi_comm = &comm;
  try {
    return moonhalo::Session(options);
  } catch (const moonhalo::SessionError& error) {
    if (error.status() != MH_UNSUPPORTED || mh_mpi_transport(comm, &transport) != MPI_SUCCESS) throw;
  }
  options.mpi_comm = nullptr;
  options.transport = &transport;
  return moonhalo::Session(options);
}

/// In situ: at every leap of two steps the network sees where the solver was and where it got to. Returns the last
/// loss.
double train(moonhalo::Session& session, solver& s, int leaps) {
  double loss = 0;
  for (int leap = 0; leap < leaps; ++leap) {
    if (leap % 8 == 0) set_initial(&s, leap / 8);
    session.call("remember");
    step(&s);
    step(&s);
    loss = session.call("learn", {}, 1)[0];
  }
  return loss;
}

/// One field advanced by the solver, then the same by the network in the solver's array: how far each has moved.
std::pair<double, double> compare(moonhalo::Session& session, solver& s) {
  set_initial(&s, 1000);
  session.call("remember");
  for (int i = 0; i < 2 * kUsed; ++i) step(&s);
  const double change = session.call("measure", {}, 2)[1];
  const std::vector<double> truth(s.now, s.now + (s.owned[0] + 2) * s.pitch);
  set_initial(&s, 1000);
  for (int i = 0; i < kUsed; ++i) session.call("leap");
  session.call("remember");
  std::memcpy(s.now, truth.data(), truth.size() * sizeof(double));
  return {change, session.call("measure", {}, 2)[1]};
}

void run(solver& s, const char* script, int leaps, mh_transport& transport) {
  moonhalo::Session session = start_session(s.comm, script, transport);
  session.field("u", block_of(&s));
  const double loss = train(session, s, leaps);
  const std::pair<double, double> moved = compare(session, s);
  if (s.rank != 0) return;
  std::printf("final training loss                %.16e\n", loss);
  std::printf("the field changed by (rms)         %.16e\n", moved.first);
  std::printf("network against solver (rms)       %.16e\n", moved.second);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  solver s = start_solver(MPI_COMM_WORLD);
  mh_transport transport{};
  try {
    run(s, argc > 1 ? argv[1] : "surrogate.lua", argc > 2 ? std::atoi(argv[2]) : 1200, transport);
  } catch (const std::exception& error) {  // the solver decides what an error is worth
    std::fprintf(stderr, "heat: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  mh_mpi_transport_free(&transport);
  end_solver(&s);
  MPI_Finalize();
}
