// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/environment_report.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <sstream>

#include "moonhalo/engine/comm/device/device_link.h"
#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/comm/missing_mpi.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/launch/rendezvous.h"
#include "moonhalo/engine/launch/sockets.h"

namespace moonhalo {
namespace {

using GetEnv = std::function<const char*(const char*)>;

std::string first_line_of(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

std::string access_of(const MeetingPlace& place) {
  if (!place.key.empty()) return ", with a job key";
  return open_meeting(place).empty() ? ", open to this machine"
                                     : ", open: without MOONHALO_JOB_KEY to whoever reaches that port";
}

std::string control_of(const Launch& launch, const GetEnv& getenv) {
  const std::string backend = fitting_backend(launch);
  if (backend == "threads") return "threads: one process; --ranks N makes N ranks of it";
  if (backend == "mpi") return "mpi";
  const std::string no_mpi = launch.joins_mpi ? "; no MPI: " + missing_mpi() : "";
  try {
    const auto place = meeting_place(launch, getenv);
    if (!place)
      return "tcp, but not where the processes connect: set MASTER_ADDR (a host that all reach) and MASTER_PORT" +
             no_mpi;
    return "tcp, store at " + host_and_port(place->host, place->port) + " (" +
           (place->serves ? "served by this process" : "served by another") + ")" + access_of(*place) + no_mpi;
  } catch (const c10::ValueError& error) {
    return first_line_of(error);
  }
}

// Device of this rank as far as one process can tell; ranks that connect compare what they see (device_of_rank).
std::string device_of(const Launch& launch, const std::string& required, const GetEnv& getenv) {
  const auto device = parse_compute_device(required);
  if (!device) return "'" + required + "' is neither cpu nor a device of this LibTorch";
  if (device->is_cpu()) return "cpu";
  const std::string kind = c10::DeviceTypeName(device->type(), /*lower_case=*/true);
  const int64_t count = device_count(device->type());
  const char* const visible = getenv("CUDA_VISIBLE_DEVICES");
  if (count == 0)
    return "none: " + required + " was asked for" +
           (visible != nullptr ? ", CUDA_VISIBLE_DEVICES='" + std::string(visible) + "'" : "");
  const std::string of = " of " + std::to_string(count) + " on this host";
  if (device->has_index()) return device->str() + of + ", shared by all ranks of the host";
  if (launch.local_rank < 0) return "one" + of + " a rank; which, the ranks find when they connect";
  const bool own = count == 1 && visible != nullptr && std::string(visible).find(',') == std::string::npos;
  if (!own && (launch.local_size > count || launch.local_rank >= count))
    return "none: " + std::to_string(std::max(launch.local_size, launch.local_rank + 1)) + " ranks for " +
           std::to_string(count) + " devices on this host; start no more, or name one that all share (" + kind + ":0)";
  return kind + ":" + std::to_string(own ? 0 : launch.local_rank) + of;
}

std::string data_of(const std::string& required, const std::string& backend) {
  const auto device = parse_compute_device(required);
  if (!device || device->is_cpu()) return backend;
  return describe_device_links() + " and " + backend;
}

void warn(std::ostringstream& text, const GetEnv& getenv) {
  const auto value = [&](const char* name) {
    const char* const found = getenv(name);
    return found == nullptr ? std::string() : std::string(found);
  };
  const auto line = [&](const std::string& said) { text << "warning       " << said << "\n"; };
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "CUDA_LAUNCH_BLOCKING"}) {
    if (!value(name).empty() && value(name) != "0") line(std::string(name) + "=" + value(name) + " makes runs slower");
  }
  const char* const visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr && *visible == '\0') line("CUDA_VISIBLE_DEVICES is empty: no device can be seen");
}

}  // namespace

std::string describe(const Launch& launch, const std::string& device, const GetEnv& getenv) {
  std::ostringstream text;
  const auto line = [&](const char* label, const std::string& said) {
    text << label << std::string(14 - std::string(label).size(), ' ') << said << "\n";
  };
  line("launcher", std::string(name(launch.kind)) + " (" + launch.why + ")");
  if (!launch.ignored_variables.empty()) line("not believed", launch.ignored_variables);
  std::string rank = std::to_string(launch.rank) + " of " + std::to_string(launch.size);
  if (launch.size > 1 && launch.local_rank >= 0) {
    rank += ", " + std::to_string(launch.local_rank);
    if (launch.local_size > 0) rank += " of " + std::to_string(launch.local_size);
    rank += " on " + this_host();
  }
  line("rank", rank);
  line("control", control_of(launch, getenv));
  line("device", device_of(launch, device, getenv));
  line("data", data_of(device, fitting_backend(launch)));
  const char* const limit = getenv("MOONHALO_TIMEOUT_S");
  line("threads", std::to_string(at::get_num_threads()) + " of LibTorch in this process");
  line("time limit", (limit == nullptr || *limit == '\0' ? "600" : std::string(limit)) + std::string(" s"));
  warn(text, getenv);
  return text.str();
}

}  // namespace moonhalo
