// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/launch.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/device/device_link.h"
#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/comm/missing_mpi.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/launch/late_note.h"
#include "moonhalo/engine/launch/rendezvous.h"
#include "moonhalo/engine/launch/sockets.h"

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

// The rank and size that PMI gives, or nothing.
std::optional<std::pair<int, int>> pmi_numbers(const Environment& env) {
  if (!env.all({"PMI_RANK", "PMI_SIZE"})) return std::nullopt;
  return std::pair{env.number("PMI_RANK"), env.number("PMI_SIZE")};
}

// A task that starts an mpirun of its own has Flux's variables and other numbers of PMI.
std::optional<Launch> from_flux(const Environment& env) {
  if (!env.all({"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}) || env.number("FLUX_JOB_SIZE") == 1) return std::nullopt;
  const std::pair own{env.number("FLUX_TASK_RANK"), env.number("FLUX_JOB_SIZE")};
  const auto pmi = pmi_numbers(env);
  if (pmi && *pmi != own) return std::nullopt;
  return Launch{Launch::kFlux,
                own.first,
                own.second,
                env.number_or({"FLUX_TASK_LOCAL_ID"}, -1),
                /*local_size=*/-1,
                /*joins_mpi=*/pmi.has_value() || env.text("PMIX_RANK") != nullptr,
                env.quote({"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_ID", "PMI_RANK", "PMIX_RANK"})};
}

// PALS gives ranks, and its PMI how many there are.
std::optional<Launch> from_pals(const Environment& env) {
  const auto pmi = pmi_numbers(env);
  if (!pmi || env.text("PALS_RANKID") == nullptr || env.number("PALS_RANKID") != pmi->first) return std::nullopt;
  return Launch{Launch::kPals,
                pmi->first,
                pmi->second,
                env.number_or({"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"}, -1),
                env.number_or({"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"}, -1),
                /*joins_mpi=*/true,
                env.quote({"PALS_RANKID", "PMI_SIZE", "PALS_APID"})};
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
  // A batch script has all of Slurm's variables, but it is not a step.
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

constexpr auto kLaunchers = {from_torchrun, from_open_mpi, from_flux, from_pals, from_pmi, from_slurm};

// Lists variables that belong to no whole launch.
std::vector<std::string> incomplete(const Environment& env) {
  std::vector<std::string> texts;
  const auto add = [&](const char* why, std::initializer_list<const char*> variables) {
    if (const std::string set = env.quote(variables); !set.empty()) texts.push_back(why + set);
  };
  if (!from_torchrun(env))
    add("not torchrun, which sets four variables: only ", {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"});
  if (!from_slurm(env))
    add("not Slurm, whose steps have an id and more than one task: only ",
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"});
  if (!from_flux(env))
    add("not Flux, whose jobs have several tasks with the numbers of PMI: only ", {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"});
  if (!from_pals(env)) add("not PALS, whose rank is that of PMI: only ", {"PALS_RANKID"});
  return texts;
}

// Other launchers that give other numbers: an outer one, or variables that were left over.
std::string disbelieved(const Environment& env, const Launch& believed) {
  std::vector<std::string> texts;
  for (const auto& from : kLaunchers) {
    try {
      const std::optional<Launch> other = from(env);
      if (!other || other->kind == believed.kind) continue;
      if (other->rank == believed.rank && other->size == believed.size) continue;
      texts.push_back(std::string(name(other->kind)) + ", rank " + std::to_string(other->rank) + " of " +
                      std::to_string(other->size) + " (" + other->why + ")");
    } catch (const c10::ValueError& error) {
      const std::string text = error.what_without_backtrace();
      texts.push_back(text.substr(0, text.find('\n')));
    }
  }
  if (believed.size == 1) {
    for (const std::string& text : incomplete(env)) texts.push_back(text);
    if (env.text("PMIX_RANK") != nullptr)
      texts.push_back(env.quote({"PMIX_RANK"}) + ", which does not tell how many ranks there are");
  }
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : "; ") + text;
  return all;
}

}  // namespace

std::string fitting_backend(const Launch& launch) {
  if (launch.size == 1) return "threads";
  return launch.joins_mpi && has_mpi() ? "mpi" : "tcp";
}

const char* name(Launch::Kind kind) {
  switch (kind) {
    case Launch::kSingle:
      return "single";
    case Launch::kTorchrun:
      return "torchrun";
    case Launch::kOpenMpi:
      return "openmpi";
    case Launch::kFlux:
      return "flux";
    case Launch::kPals:
      return "pals";
    case Launch::kPmi:
      return "pmi";
    case Launch::kSlurm:
      return "slurm";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown launcher ", static_cast<int>(kind));
}

Launch detect_launch(const std::function<const char*(const char*)>& getenv) {
  const Environment env(getenv);
  for (const auto& from : kLaunchers) {
    std::optional<Launch> launch = from(env);
    if (!launch) continue;
    TORCH_CHECK_VALUE(launch->rank < launch->size, "launch: rank ", launch->rank, " of ", launch->size,
                      " does not exist\n  have  ", launch->why, "\n  fix   ranks count from 0 to size - 1");
    launch->ignored_variables = disbelieved(env, *launch);
    return *launch;
  }
  TORCH_CHECK_VALUE(env.number_or({"PMIX_RANK"}, 0) == 0,
                    "launch: PMIx gives this process a rank, and no variable tells how "
                    "many there are\n  have  ",
                    env.quote({"PMIX_RANK", "PMIX_NAMESPACE"}),
                    "\n  fix   start the program with mpirun or srun, or with torchrun's four variables");
  Launch single;
  single.why = "no launcher's variables are set";
  single.ignored_variables = disbelieved(env, single);
  return single;
}

namespace {

/// True if this process was started without the variable. False where /proc cannot be read.
bool set_since_the_start(const std::string& variable) {
  std::ifstream file("/proc/self/environ", std::ios::binary);
  if (!file) return false;
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry.starts_with(variable + "=")) return false;
  }
  return true;
}

}  // namespace

Launch detect_launch() {
  return detect_launch([](const char* variable) -> const char* {
    // Open MPI sets it in a process that initialises MPI alone: then it says nothing about the launcher.
    if (std::string_view(variable) == "PMIX_RANK" && set_since_the_start(variable)) return nullptr;
    return std::getenv(variable);
  });
}

namespace {

CommunicatorPtr make_tcp_world(const Launch& launch) {
  const std::string no_mpi = launch.joins_mpi ? missing_mpi() : "";
  auto place = meeting_place(launch, [](const char* variable) -> const char* { return std::getenv(variable); });
  TORCH_CHECK_VALUE(
      place, "world: backend \"tcp\" does not know where the processes connect\n  have  ", launch.why,
      no_mpi.empty() ? "" : "; no MPI: ", no_mpi,
      "\n  fix   set MASTER_ADDR (a host that all reach, that of rank 0) and MASTER_PORT, or start them with torchrun");
  place->no_mpi = looks_for_mpi() ? no_mpi : "";
  if (launch.rank == 0 && !no_mpi.empty())
    note("without MPI (" + no_mpi + ") the ranks connect by TCP at " + host_and_port(place->host, place->port));
  return make_transport_communicators(join_ranks(launch, *place, default_time_limit()), 1)[0];
}

// The start of MPI has ten times the limit of a collective.
CommunicatorPtr start_mpi_world(const Launch& launch) {
  if (launch.size == 1 || !looks_for_mpi()) return make_mpi_world();
  const LateNote late(std::chrono::seconds(10), 10 * default_time_limit(),
                      "rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.size) + " on " +
                          this_host() + ": MPI has not started",
                      "ranks on machines without the library of MPI connect by TCP, and do not come: give all ranks "
                      "backend \"tcp\", or all the library");
  return make_mpi_world();
}

CommunicatorPtr make_whole_mpi_world(const Launch& launch) {
  CommunicatorPtr world = start_mpi_world(launch);
  TORCH_CHECK_VALUE(launch.size == 1 || world->size() == launch.size, "world: the launcher started ", launch.size,
                    " processes, but MPI finds ", world->size(), "\n  have  ", launch.why,
                    "\n  fix   use the mpirun of the MPI that Moonhalo was built with, or backend \"tcp\"");
  return world;
}

}  // namespace

CommunicatorPtr make_world(const std::string& backend, const Launch& launch) {
  const bool fits = backend.empty() || is_device_link(backend);
  const std::string chosen = fits ? fitting_backend(launch) : backend;
  if (chosen == "fake") return make_fake_communicator(launch.rank, launch.size);
  if (chosen == "mpi") return make_whole_mpi_world(launch);
  if (chosen == "tcp") return make_tcp_world(launch);
  static const std::map<std::string, std::string, std::less<>> kElsewhere = {
      {"openmpi", "mpi"}, {"mpich", "mpi"}, {"MPI", "mpi"}, {"NCCL", "nccl"}, {"gloo", "tcp"}};
  TORCH_CHECK_VALUE(chosen == "threads", "world: unknown backend \"", chosen, "\"",
                    did_you_mean(chosen, {"threads", "mpi", "tcp", "nccl", "staged", "fake"}, kElsewhere),
                    "\n  have  backend \"", chosen,
                    "\"\n  fix   use \"threads\", \"mpi\", \"tcp\", \"nccl\", \"staged\" or \"fake\"");
  TORCH_CHECK_VALUE(launch.size == 1, "world: backend \"threads\" cannot reach the other ", launch.size - 1,
                    " processes\n  have  ", launch.why,
                    "\n  fix   leave --backend out, or start one process with --ranks ", launch.size);
  return make_self_communicator();
}

}  // namespace moonhalo
