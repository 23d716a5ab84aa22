// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/rendezvous.h"

#include <c10/util/Exception.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/boot_id.h"
#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/comm/tcp/socket_transport.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/launch/handshake.h"
#include "moonhalo/engine/launch/job_key.h"
#include "moonhalo/engine/launch/late_note.h"
#include "moonhalo/engine/launch/sha256.h"
#include "moonhalo/engine/launch/sockets.h"
#include "moonhalo/engine/launch/store_client.h"

namespace moonhalo {
namespace {

using Clock = MeetingClock;
using std::chrono::milliseconds;

[[noreturn]] void fail(const std::string& what, const std::string& have, const std::string& fix) {
  throw CommError("launch: " + what + "\n  have  " + have + "\n  fix   " + fix);
}

/// Says how other processes reach this one.
struct Contact {
  std::string machine;  ///< name and boot of its system
  std::vector<std::string> ips;
  uint16_t port = 0;
  bool everywhere = false;  ///< it listens on all interfaces of its machine

  std::string text() const {
    std::string all;
    for (const std::string& ip : ips) all += " " + ip;
    return machine + " " + std::to_string(port) + (everywhere ? " everywhere" : " at") + all;
  }
  /// Reads any string: what is not a contact has port 0.
  static Contact of(const std::string& text) {
    std::istringstream words(text);
    Contact contact;
    std::string where;
    words >> contact.machine >> contact.port >> where;
    contact.everywhere = where == "everywhere";
    for (std::string ip; words >> ip;) contact.ips.push_back(ip);
    return contact;
  }
};

std::string this_machine() { return this_host() + "/" + boot_id(); }

/// Calls the ranks before this one and is called by those behind it.
class Meeting {
 public:
  Meeting(const Launch& launch, const MeetingPlace& place, milliseconds limit, milliseconds note_after)
      : launch_(launch),
        place_(place),
        limit_(limit),
        note_after_(note_after),
        deadline_(Clock::now() + limit),
        seal_(place.key, place.run),
        me_{place.key, place.run, launch.rank, launch.size},
        sockets_(launch.size) {}

  std::vector<int> hold() {
    try {
      return connect_all();
    } catch (const StoreLost& lost) {
      unreachable(lost.what());
    }
  }

 private:
  std::vector<int> connect_all() {
    allow_many_files();
    if (const std::string warning = open_meeting(place_); launch_.rank == 0 && !warning.empty()) note(warning);
    open_store();
    if (seal_.has_key()) store_->set(keyed(), "yes");
    check_key();
    claim();
    const Listener listening = listen_for_ranks(place_.host, place_.port);
    const Contact mine{this_machine(), listening.ips, listening.port, listening.everywhere};
    if (launch_.rank == 0 && !seal_.has_key()) set("secret", hex(random_digest()));
    set("rank" + std::to_string(launch_.rank), mine.text());
    const std::vector<std::string> contacts = get_of_all("rank");
    if (!seal_.has_key()) me_.key = secret();
    for (int rank = 0; rank < launch_.rank; ++rank) call(rank, contacts[rank], mine.machine);
    Callers callers(listening.socket.get(), me_);
    while (missing() >= 0) answer(callers);
    set("done" + std::to_string(launch_.rank), "yes");
    if (place_.serves) get_of_all("done");  // then no rank needs the store
    std::vector<int> sockets;
    for (Socket& socket : sockets_) sockets.push_back(socket.release());
    return sockets;
  }

  void allow_many_files() const {
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    const auto required = 2 * static_cast<rlim_t>(launch_.size) + 512;  // ranks, and strangers for a while
    if (files.rlim_cur >= required || files.rlim_cur == files.rlim_max) return;
    files.rlim_cur = std::min(files.rlim_max, required);
    setrlimit(RLIMIT_NOFILE, &files);
  }

  void open_store() {
    if (place_.serves && !serve_store()) port_is_taken(std::strerror(errno));
    const LateNote late(note_after_, limit_, rank_text(launch_.rank) + " has not reached the store at " + address(),
                        "rank 0 serves it, and MASTER_ADDR and MASTER_PORT say where" + mpi_hint());
    store_.emplace(place_.host, place_.port, deadline_);
  }

  /// False where the port is taken; errno says why.
  bool serve_store() {
    Socket listening = listen_at(place_.host, place_.port);
    if (!listening) return false;
    c10d::TCPStoreOptions options;
    options.port = place_.port;
    options.isServer = true;
    options.waitWorkers = false;
    options.timeout = limit_;
    const std::string here = way_to(listening.get());
    options.masterListenFd = listening.release();  // the store's from now on
    try {
      server_ = c10::make_intrusive<c10d::TCPStore>(here, options);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw StoreLost(text.substr(0, text.find('\n')));
    }
    return true;
  }

  /// The store there may be another job's, whose rank 0 would take ranks of this one for its own where their entries
  /// have the same names. Where they have not, it goes on, and ranks of this job that come there find why theirs do
  /// not.
  [[noreturn]] void port_is_taken(const std::string& why) {
    const std::string text = "launch: rank 0 cannot serve the store at " + address() + "\n  have  " + why +
                             ": another job or program has the port\n  fix   " + kOwnPort;
    try {
      store_.emplace(place_.host, place_.port, std::min(deadline_, Clock::now() + std::chrono::seconds(3)));
      claim();
      stop_all("", text);
    } catch (const StoreLost&) {  // another program's
      throw CommError(text);
    }
  }

  std::string address() const { return host_and_port(place_.host, place_.port); }
  std::string rank_text(int rank) const {
    return "rank " + std::to_string(rank) + " of " + std::to_string(launch_.size);
  }

  /// Says that this process is its rank, and of which job. Where another says the same, or something else, two jobs
  /// have one store, or ranks wrong numbers; none of them may go on.
  void claim() {
    const std::string me = this_host() + ", process " + std::to_string(::getpid());
    const std::string mark = "\n" + hex(random_digest());  // processes of two machines' containers may look the same
    const std::string fix =
        std::string("\n  fix   ") + kOwnPort + ", and its processes each a RANK and all one WORLD_SIZE";
    const std::string theirs = set_once("job", job() + "\nrank " + std::to_string(launch_.rank) + ", " + me);
    if (const size_t end = theirs.find('\n'); theirs.substr(0, end) != job()) {
      const std::string other = theirs.substr(0, end);
      stop_all(other, "launch: processes at " + address() + " do not belong to one job\n  have  " + job() +
                          ", says rank " + std::to_string(launch_.rank) + ", " + me + "; " + other + ", says " +
                          theirs.substr(end + 1) + fix);
    }
    const std::string first = set_once("claim" + std::to_string(launch_.rank), me + mark);
    if (first != me + mark) {
      stop_all(job(), "launch: two processes at " + address() + " say that they are rank " +
                          std::to_string(launch_.rank) + "\n  have  " + me + "; " + first.substr(0, first.find('\n')) +
                          fix);
    }
  }

  /// The value that was there before, else this one.
  std::string set_once(const std::string& name, const std::string& value) {
    return seal_.open(name, store_->set_once(seal_.name(name), seal_.close(name, value)), address());
  }

  static constexpr std::chrono::seconds kReplyWait{1};  // before the store goes, which others are about to ask
  static constexpr char kStops = '!';  // begins what is not a contact, but the reason for which all ranks stop

  static constexpr const char* kOwnPort = "give every job a MASTER_PORT of its own";

  /// Names this job, as far as it is known.
  std::string job() const { return std::to_string(launch_.size) + " ranks" + place_.job; }
  static int ranks_of(const std::string& job) { return std::clamp(std::atoi(job.c_str()), 0, 100000); }

  /// Ends the ranks of this job, and those of `other`, which has the same entries ("": none has).
  [[noreturn]] void stop_all(const std::string& other, const std::string& said) {
    const std::string text = printable(said);
    write_stop(other, text);
    leave(other, text);
  }

  /// Writes it in place of the contacts that ranks wait for.
  void write_stop(const std::string& other, const std::string& text) {
    for (int rank = 0; rank < std::max(launch_.size, ranks_of(other)); ++rank)
      set("rank" + std::to_string(rank), kStops + job() + "\n" + other + "\n" + text);
  }

  /// Ends this rank, for which stop_all of another has written `said`.
  [[noreturn]] void stop(const std::string& said) {
    std::istringstream lines(said.substr(1));
    std::string first, second, text;
    std::getline(lines, first);
    std::getline(lines, second);
    std::getline(lines, text, '\0');
    leave(first == job() ? second : first, text.empty() ? said.substr(1) : text);
  }

  /// Rank 0 ends last, and the store with it: a rank that comes later would look for it as long as its limit says.
  [[noreturn]] void leave(const std::string& other, const std::string& text) {
    try {
      const bool waits = launch_.rank == 0 && place_.serves;
      if (waits && !server_)
        wait_until_stopped(other, text);  // counts itself last, so that the other job's waits for it
      store_->add(stopped(job()), 1);
      if (waits && server_) wait_until_stopped(other, text);
    } catch (const StoreLost&) {  // the other job's rank 0 has not waited longer
    }
    throw CommError(text);
  }

  /// Names the count of the ranks that have read why they stop.
  std::string stopped(const std::string& job) const { return seal_.name("stopped " + job); }

  /// Returns when all ranks have read the text: those of this job and, at this rank's store, of the other one. Not
  /// later than ranks are expected.
  void wait_until_stopped(const std::string& other, const std::string& text) {
    const auto until = std::min(deadline_, Clock::now() + note_after_);
    int64_t own = launch_.size * (other == job() ? 2 : 1) - (server_ ? 0 : 1), counted = 0;
    const int64_t others = server_ && other != job() ? ranks_of(other) : 0;
    for (bool at_other = !server_; Clock::now() < until; std::this_thread::sleep_for(milliseconds(20))) {
      try {
        counted = store_->add(stopped(job()), 0);
        if (counted >= own && (others == 0 || store_->add(stopped(other), 0) >= others)) return;
      } catch (const StoreLost&) {
        if (!at_other) throw;
        if (!serve_store()) continue;
        at_other = false;  // the other job has ended, and this rank has the port
        own -= counted;
        store_.emplace(place_.host, place_.port, until);
        write_stop(other, text);
      }
    }
  }

  [[noreturn]] void unreachable(const std::string& why) const {
    fail("cannot reach the store at " + address(), why,
         "see that the node of rank 0 can be reached from all others and that its port is free; MASTER_ADDR and "
         "MASTER_PORT name another" +
             mpi_hint());
  }

  /// Stands for a key where there is none: anybody can read it who reaches the store.
  std::string secret() { return store_->get({seal_.name("secret")})[0]; }

  void set(const std::string& name, const std::string& value) {
    store_->set(seal_.name(name), seal_.close(name, value));
  }

  /// Says that there are ranks with a key.
  std::string keyed() const { return "moonhalo/" + place_.run + "/keyed"; }

  /// Others have a key, and this rank has none: neither side can find the other.
  void check_key() {
    bool others_do = false;
    try {
      others_do = !seal_.has_key() && store_->has(keyed());
    } catch (const StoreLost&) {  // rank 0 has given up, and the store with it
    }
    if (!others_do) return;
    fail("ranks at " + address() + " have a job key, and " + rank_text(launch_.rank) + " has none", launch_.why,
         "give all ranks the same MOONHALO_JOB_KEY (mpirun -x, srun --export) or MOONHALO_JOB_KEY_FILE");
  }

  /// Gives what each rank has said under NAME and its number. When all have, all are there.
  std::vector<std::string> get_of_all(const std::string& name) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < launch_.size; ++rank) keys.push_back(seal_.name(name + std::to_string(rank)));
    std::vector<std::string> values;
    try {
      if (await(keys)) values = opened(name, store_->get(keys));
    } catch (const CommError&) {
      if (place_.serves) std::this_thread::sleep_for(kReplyWait);
      throw;
    } catch (const StoreLost&) {
      if (Clock::now() < deadline_) throw;
    }
    for (const std::string& value : values) {
      if (value.starts_with(kStops)) stop(value);
    }
    if (!values.empty()) return values;
    const int rank = first_without(keys);
    if (place_.serves) std::this_thread::sleep_for(kReplyWait);
    late(rank);
  }

  std::vector<std::string> opened(const std::string& name, const std::vector<std::string>& closed) const {
    std::vector<std::string> values;
    for (const std::string& value : closed) {
      values.push_back(printable(seal_.open(name + std::to_string(values.size()), value, address())));
    }
    return values;
  }

  /// Ends this rank where another has stopped all.
  void check_stopped() {
    const std::string mine = "rank" + std::to_string(launch_.rank);
    const std::string said = printable(seal_.open(mine, store_->get({seal_.name(mine)})[0], address()));
    if (said.starts_with(kStops)) stop(said);
  }

  /// False where one is missing at the deadline.
  bool await(const std::vector<std::string>& keys) {
    if (store_->wait(keys, std::min(Clock::now() + note_after_, deadline_))) return true;
    check_key();
    if (Clock::now() >= deadline_) return false;
    const int rank = first_without(keys);
    if (place_.serves && rank >= 0) {
      note(rank_text(rank) + " has not come to " + address() + " within " + seconds_text(note_after_) +
           "; it is waited for " + seconds_text(left_until(deadline_)) + " longer" + key_hint() + mpi_hint());
    }
    return store_->wait(keys, deadline_);
  }

  /// The first rank whose key the store does not have; -1 when that cannot be asked any more.
  int first_without(const std::vector<std::string>& keys) {
    try {
      for (int rank = 0; rank < launch_.size; ++rank) {
        if (!store_->has(keys[rank])) return rank;
      }
    } catch (const StoreLost&) {  // rank 0 has given up, and the store with it
    }
    return -1;
  }

  [[noreturn]] void late(int rank) const {
    fail((rank < 0 ? "one of the ranks" : rank_text(rank)) + " has not come within " + seconds_text(limit_),
         launch_.why,
         "look at what that process said; MOONHALO_TIMEOUT_S gives it more time" + key_hint() + mpi_hint());
  }
  /// A rank that has found MPI is in MPI_Init, and never comes here.
  std::string mpi_hint() const {
    if (place_.no_mpi.empty()) return "";
    return "; " + rank_text(launch_.rank) + " on " + this_host() + " found no MPI (" + place_.no_mpi +
           "), and ranks that found it wait in MPI_Init: give all ranks backend \"tcp\", or all the library of MPI";
  }
  std::string key_hint() const { return seal_.has_key() ? "; all ranks need the same job key (MOONHALO_JOB_KEY)" : ""; }

  void call(int rank, const std::string& text, const std::string& machine) {
    const Contact contact = Contact::of(text);
    const bool beside = contact.machine == machine && contact.everywhere;
    const std::vector<std::string> ips = beside ? std::vector<std::string>{"127.0.0.1", "::1"} : contact.ips;
    constexpr milliseconds kEach{30000};
    for (const std::string& ip : ips) {
      const auto until = std::min(deadline_, Clock::now() + kEach);
      sockets_[rank] = connect_to_rank(ip, contact.port, me_, rank, until);
      if (sockets_[rank]) return prepare(sockets_[rank].get());
    }
    check_stopped();
    fail("cannot connect to rank " + std::to_string(rank), "it can be called at " + text,
         "see that no firewall is between the nodes; MOONHALO_ADDRESS gives the address of a node that others reach");
  }

  void answer(Callers& callers) {
    const auto required = [this](int rank) { return rank > launch_.rank && !sockets_[rank]; };
    constexpr milliseconds kPollPause{500};  // whether all are stopped
    auto caller = callers.next(required, std::min(deadline_, Clock::now() + kPollPause));
    if (!caller) {
      check_stopped();
      if (Clock::now() < deadline_) return;
      late(missing());
    }
    prepare(caller->second.get());
    sockets_[caller->first] = std::move(caller->second);
  }

  static void prepare(int socket) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  }

  /// A rank behind this one that has not called yet, or -1.
  int missing() const {
    for (int rank = launch_.rank + 1; rank < launch_.size; ++rank) {
      if (!sockets_[rank]) return rank;
    }
    return -1;
  }

  const Launch& launch_;
  const MeetingPlace& place_;
  milliseconds limit_, note_after_;
  Clock::time_point deadline_;
  c10::intrusive_ptr<c10d::TCPStore> server_;  // of rank 0
  std::optional<StoreClient> store_;
  Seal seal_;
  Member me_;
  std::vector<Socket> sockets_;
};

// The ports of jobs without MASTER_PORT. Steps of one job may share a node, as may jobs.
constexpr uint64_t kFirstPort = 20000, kPorts = 10000;

// "n01" of "n[01-04,7],m3".
std::string first_node(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

// The port follows from the number of the job.
MeetingPlace place_of_job(const Launch& launch, const std::string& host, uint64_t number, const std::string& job,
                          const std::function<const char*(const char*)>& getenv) {
  MeetingPlace place{host, static_cast<uint16_t>(kFirstPort + number % kPorts), launch.rank == 0, job};
  place.key = job_key(getenv);
  return place;
}

}  // namespace

std::optional<MeetingPlace> meeting_place(const Launch& launch, const std::function<const char*(const char*)>& getenv) {
  const auto text = [&](const char* variable) -> std::string {
    const char* value = getenv(variable);
    return value == nullptr ? "" : value;
  };
  if (!text("MASTER_ADDR").empty() && !text("MASTER_PORT").empty()) {
    char* end = nullptr;
    const std::string given = text("MASTER_PORT");
    const long port = std::strtol(given.c_str(), &end, 10);
    TORCH_CHECK_VALUE(*end == '\0' && port > 0 && port < 65536,
                      "launch: MASTER_PORT is not a port\n  have  MASTER_PORT=", given,
                      "\n  fix   give a free port, 1 to 65535");
    MeetingPlace place{without_brackets(text("MASTER_ADDR")), static_cast<uint16_t>(port), launch.rank == 0, ""};
    place.key = job_key(getenv);
    // torchrun serves a store itself, one for each attempt.
    if (text("TORCHELASTIC_USE_AGENT_STORE") == "True") place.serves = false;
    place.run = text("TORCHELASTIC_RUN_ID") + "/" + text("TORCHELASTIC_RESTART_COUNT");
    for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"}) {
      if (place.job.empty() && !text(variable).empty())
        place.job = " of " + std::string(variable) + "=" + text(variable);
    }
    return place;
  }
  if (launch.kind == Launch::kOpenMpi && launch.local_size == launch.size) {
    const std::string job = text("PMIX_NAMESPACE").empty() ? text("OMPI_MCA_ess_base_jobid") : text("PMIX_NAMESPACE");
    if (job.empty()) return std::nullopt;
    const Digest digest = sha256(job);
    const uint64_t number = digest[0] * 256 + digest[1];
    return place_of_job(launch, "127.0.0.1", number, job, getenv);
  }
  if (launch.kind != Launch::kSlurm) return std::nullopt;
  const std::string nodes = text("SLURM_STEP_NODELIST"), job = text("SLURM_JOB_ID");
  const std::string step = text("SLURM_STEP_ID").empty() ? text("SLURM_STEPID") : text("SLURM_STEP_ID");
  if (nodes.empty() || job.empty()) return std::nullopt;
  const uint64_t number = std::strtoull(job.c_str(), nullptr, 10) * 31 + std::strtoull(step.c_str(), nullptr, 10);
  return place_of_job(launch, first_node(nodes), number, job + "." + step, getenv);
}

std::string open_meeting(const MeetingPlace& place) {
  if (!place.key.empty() || is_loopback(place.host)) return "";
  return "the ranks come to " + host_and_port(place.host, place.port) +
         " without a job key: whoever reaches that port can read, change and end the job; give all ranks one "
         "MOONHALO_JOB_KEY (openssl rand -hex 32), or MOONHALO_JOB_KEY_FILE";
}

TransportPtr join_ranks(const Launch& launch, const MeetingPlace& place, milliseconds limit, milliseconds note_after) {
  return make_socket_transport(launch.rank, Meeting(launch, place, limit, note_after).hold());
}

}  // namespace moonhalo
