// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/launch.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/launch/rendezvous.h"

namespace moonhalo {
namespace {

class Environment {
 public:
  explicit Environment(const std::function<const char*(const char*)>& getenv) : getenv_(getenv) {}

  // A variable set to nothing counts as not set.
  const char* text(const char* variable) const {
    const char* value = getenv_(variable);
    return value != nullptr && *value != '\0' ? value : nullptr;
  }

  bool all(std::initializer_list<const char*> variables) const {
    for (const char* variable : variables) {
      if (text(variable) == nullptr) return false;
    }
    return true;
  }

  int number(const char* variable) const {
    const char* value = text(variable);
    TORCH_INTERNAL_ASSERT(value != nullptr, variable);
    char* end = nullptr;
    errno = 0;
    const long number = std::strtol(value, &end, 10);
    TORCH_CHECK_VALUE(*end == '\0' && errno == 0 && number >= 0 && number <= 1 << 30, "launch: ", variable,
                      " is not a number of ranks\n  have  ", variable, "=", value,
                      "\n  fix   start the program with its launcher, or unset the variable");
    return static_cast<int>(number);
  }

  int number_or(std::initializer_list<const char*> variables, int otherwise) const {
    for (const char* variable : variables) {
      if (text(variable) != nullptr) return number(variable);
    }
    return otherwise;
  }

  std::string quote(std::initializer_list<const char*> variables) const {
    std::string quoted;
    for (const char* variable : variables) {
      if (text(variable) == nullptr) continue;
      quoted += (quoted.empty() ? "" : " ") + std::string(variable) + "=" + text(variable);
    }
    return quoted;
  }

 private:
  const std::function<const char*(const char*)>& getenv_;
};

// Entry `node` of Slurm's "2(x3),1", which means 2, 2, 2, 1; -1 if there is none.
int tasks_on_node(const std::string& list, int node) {
  std::istringstream stream(list);
  std::string part;
  while (std::getline(stream, part, ',')) {
    int tasks = 0, nodes = 1;
    if (std::sscanf(part.c_str(), "%d(x%d)", &tasks, &nodes) < 1) return -1;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return -1;
}

std::optional<Launch> from_torchrun(const Environment& env) {
  if (!env.all({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})) return std::nullopt;
  return Launch{Launch::kTorchrun,
                env.number("RANK"),
                env.number("WORLD_SIZE"),
                env.number_or({"LOCAL_RANK"}, -1),
                env.number_or({"LOCAL_WORLD_SIZE"}, -1),
                /*joins_mpi=*/false,
                env.quote({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})};
}

std::optional<Launch> from_open_mpi(const Environment& env) {
  if (!env.all({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) return std::nullopt;
  return Launch{Launch::kOpenMpi,
                env.number("OMPI_COMM_WORLD_RANK"),
                env.number("OMPI_COMM_WORLD_SIZE"),
                env.number_or({"OMPI_COMM_WORLD_LOCAL_RANK"}, -1),
                env.number_or({"OMPI_COMM_WORLD_LOCAL_SIZE"}, -1),
                /*joins_mpi=*/true,
                env.quote({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})};
}

std::optional<Launch> from_pmi(const Environment& env) {
  for (const auto& [rank, size] :
       {std::pair{"PMI_RANK", "PMI_SIZE"}, std::pair{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"}}) {
    if (!env.all({rank, size})) continue;
    return Launch{Launch::kPmi,
                  env.number(rank),
                  env.number(size),
                  env.number_or({"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"}, -1),
                  env.number_or({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}, -1),
                  /*joins_mpi=*/true,
                  env.quote({rank, size})};
  }
  return std::nullopt;
}

std::optional<Launch> from_slurm(const Environment& env) {
  const char* size = env.text("SLURM_STEP_NUM_TASKS") != nullptr ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  if (!env.all({"SLURM_PROCID", size}) || env.number(size) == 1) return std::nullopt;
  const char* step = env.text("SLURM_STEP_ID") != nullptr ? "SLURM_STEP_ID" : "SLURM_STEPID";
  // A batch script has all of Slurm's variables, but it is no step.
  if (env.text(step) == nullptr || std::string(env.text(step)) == "4294967291") return std::nullopt;
  int local_size = -1;
  if (env.all({"SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"})) {
    local_size = tasks_on_node(env.text("SLURM_STEP_TASKS_PER_NODE"), env.number("SLURM_NODEID"));
  }
  if (local_size < 0) local_size = env.number_or({"SLURM_NTASKS_PER_NODE"}, -1);
  return Launch{Launch::kSlurm,
                env.number("SLURM_PROCID"),
                env.number(size),
                env.number_or({"SLURM_LOCALID"}, -1),
                local_size,
                /*joins_mpi=*/env.text("PMIX_RANK") != nullptr,
                env.quote({"SLURM_PROCID", size, step, "PMIX_RANK"})};
}

std::string disbelieved(const Environment& env) {
  std::string text;
  const std::string torchrun = env.quote({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"});
  if (!torchrun.empty()) text += "; not torchrun, which sets four variables: only " + torchrun;
  const std::string slurm = env.quote({"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"});
  if (!slurm.empty()) text += "; not Slurm, whose steps have an id and more than one task: only " + slurm;
  return text;
}

/// The backend that make_world takes for "".
std::string fitting_backend(const Launch& launch) {
  if (launch.size == 1) return "threads";
  return launch.joins_mpi ? "mpi" : "tcp";
}

}  // namespace

const char* name(Launch::Kind kind) {
  switch (kind) {
    case Launch::kSingle:
      return "single";
    case Launch::kTorchrun:
      return "torchrun";
    case Launch::kOpenMpi:
      return "openmpi";
    case Launch::kPmi:
      return "pmi";
    case Launch::kSlurm:
      return "slurm";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown launcher ", static_cast<int>(kind));
}

Launch detect_launch(const std::function<const char*(const char*)>& getenv) {
  const Environment env(getenv);
  for (const auto& from : {from_torchrun, from_open_mpi, from_pmi, from_slurm}) {
    const std::optional<Launch> launch = from(env);
    if (!launch) continue;
    TORCH_CHECK_VALUE(launch->rank < launch->size, "launch: rank ", launch->rank, " of ", launch->size,
                      " does not exist\n  have  ", launch->why, "\n  fix   ranks count from 0 to size - 1");
    return *launch;
  }
  Launch single;
  single.why = "no launcher's variables are set" + disbelieved(env);
  return single;
}

Launch detect_launch() {
  return detect_launch([](const char* variable) -> const char* { return std::getenv(variable); });
}

std::string describe(const Launch& launch) {
  std::ostringstream text;
  text << "launcher    " << name(launch.kind) << "\n"
       << "rank        " << launch.rank << " of " << launch.size << "\n";
  if (launch.local_rank >= 0) {
    text << "local rank  " << launch.local_rank;
    if (launch.local_size > 0) text << " of " << launch.local_size;
    text << "\n";
  }
  text << "because     " << launch.why << "\n";
  if (launch.size > 1) text << "joined by   " << fitting_backend(launch) << "\n";
  return text.str();
}

namespace {

CommunicatorPtr make_tcp_world(const Launch& launch) {
  const auto place = meeting_place(launch, [](const char* variable) -> const char* { return std::getenv(variable); });
  TORCH_CHECK_VALUE(place, "world: backend \"tcp\" does not know where the processes meet\n  have  ", launch.why,
                    "\n  fix   set MASTER_ADDR (a host that all reach, that of rank 0) and MASTER_PORT, or start them with torchrun");
  return make_transport_communicators(meet(launch, *place, default_time_limit()), 1)[0];
}

CommunicatorPtr make_whole_mpi_world(const Launch& launch) {
  CommunicatorPtr world = make_mpi_world();
  TORCH_CHECK_VALUE(launch.size == 1 || world->size() == launch.size, "world: the launcher started ", launch.size,
                    " processes, but MPI finds ", world->size(), "\n  have  ", launch.why,
                    "\n  fix   use the mpirun of the MPI that Moonhalo was built with, or --backend tcp");
  return world;
}

}  // namespace

CommunicatorPtr make_world(const std::string& backend, const Launch& launch) {
  const std::string chosen = backend.empty() ? fitting_backend(launch) : backend;
  if (chosen == "fake") return make_fake_communicator(launch.rank, launch.size);
  if (chosen == "mpi") return make_whole_mpi_world(launch);
  if (chosen == "tcp") return make_tcp_world(launch);
  TORCH_CHECK_NOT_IMPLEMENTED(chosen != "nccl", "world: backend \"nccl\" is not built yet", "\n  have  backend \"nccl\"",
                              "\n  fix   use \"threads\" on one machine, \"mpi\" or \"tcp\"");
  static const std::map<std::string, std::string, std::less<>> kElsewhere = {
      {"openmpi", "mpi"}, {"mpich", "mpi"}, {"MPI", "mpi"}, {"NCCL", "nccl"}, {"gloo", "tcp"}};
  TORCH_CHECK_VALUE(chosen == "threads", "world: unknown backend \"", chosen, "\"",
                    did_you_mean(chosen, {"threads", "mpi", "tcp", "nccl", "fake"}, kElsewhere),
                    "\n  have  backend \"", chosen, "\"\n  fix   use \"threads\", \"mpi\", \"tcp\", \"nccl\" or \"fake\"");
  TORCH_CHECK_VALUE(launch.size == 1, "world: backend \"threads\" cannot reach the other ", launch.size - 1,
                    " processes\n  have  ", launch.why, "\n  fix   leave --backend out, or start one process with --ranks ",
                    launch.size);
  return make_self_communicator();
}

}  // namespace moonhalo
