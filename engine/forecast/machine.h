// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace moonhalo {

/// Pairs of a size and a value, by growing size.
using SizeTable = std::vector<std::pair<double, double>>;

/// The rates of a machine, to forecast the time of a step: one schema for a laptop and for a cluster. Units
/// are bytes, seconds and floating-point operations. Of a CPU all rates are those of one core, of which a rank may have
/// several. Files of it are JSON (docs/planning.md); `moonhalo calibrate` writes them, and configs/machines has some
/// that were written by hand.
struct Machine {
  struct Host {
    int64_t cores = 1;           ///< of a host
    double memory = 0;           ///< bytes of a host; 0: not known
    double base_rss = 0;         ///< resident bytes of a process without tensors
    std::string processor = {};  ///< its model; "": not known
    /// Seconds that a core keeps one of several threads before the next; by default those of Linux with 250 ticks a
    /// second.
    double slice = 4e-3;
    double mpi_rss = 0;  ///< resident bytes that MPI adds to a process; 0: not known
  };
  struct Device {
    std::string kind = "cpu";  ///< "cpu" or "cuda"
    double memory = 0;         ///< bytes of one device; 0: not known, or the host's
    /// Operations a second by kind of work ("convolution", "product", "attention") and dtype; "" is every other dtype.
    std::map<std::string, std::map<std::string, double>> flops;
    SizeTable bandwidth;    ///< up to this working set in bytes: bytes a second, read and written ones together
    double efficiency = 1;  ///< share of `flops` and `bandwidth` that kernels reach; 1 where these were measured
    double host_link = 0;   ///< bytes a second between a device and its host; 0: not known
    double launch = 0;      ///< seconds of an operator that has nothing to do
    double dispatch = 0;    ///< of them, those of the engine: what is added to a measured operator
    double jitter = 0;      ///< standard deviation of the time of one operator that is repeated, as a share of it
  };
  /// A part of the machine: hosts, or groups of hosts behind one switch. Messages between ranks of one such part, and
  /// not of one part of a level before, have its latency and bandwidth.
  struct Level {
    std::string name;
    int64_t ranks = 0;     ///< ranks of one part; 0 in the last level: all
    double latency = 0;    ///< seconds of an empty message
    double gap = 0;        ///< seconds from one message to the next, where a rank sends several at once
    double bandwidth = 0;  ///< bytes a second, each way, of one rank
    /// True: all ranks of a part of the level before (in the first level: of this one) share one `bandwidth`.
    bool shared = false;
  };
  /// Seconds by the tensor's bytes, by kind of collective.
  using Verbs = std::map<std::string, SizeTable>;

  std::string name, made, comment;
  bool measured = false;  ///< false: written by hand
  bool quiet = true;      ///< false: times did not become stable while it was measured
  /// The source of a figure, by its path ("device.flops.product").
  std::map<std::string, std::string> sources;
  Host host;
  Device device;
  /// The factor by which work takes longer, by the number of busy cores of a host and kind of work; "stream" is what
  /// memory limits.
  std::map<int64_t, std::map<std::string, double>> neighbours;
  std::vector<Level> levels;
  std::map<std::string, std::map<int64_t, Verbs>> verbs;  ///< measured, by backend and number of ranks
  /// Measured seconds of operators, by key and by the number of busy cores.
  std::map<std::string, std::map<int64_t, double>> operators;

  /// Operations a second of `work` with this dtype, 0 if the file does not say. `efficiency` is included, as in
  /// bandwidth(). Not collective.
  double flops(const std::string& work, const std::string& dtype = "float32") const;
  /// Bytes a second where `bytes` are read and written. Not collective.
  double bandwidth(double bytes) const;
  /// The factor by which `work` takes longer where `busy` cores of the host work. Between two entries the factor grows
  /// evenly; above the last it stays. Not collective.
  double slowdown(const std::string& work, double busy) const;
  /// The time by which the slowest of `ranks` ranks is behind the mean after `worked` seconds. Not collective.
  double lateness(double worked, int64_t ranks) const;
  /// The number of the narrowest level that has both ranks of the world in one part. Not collective.
  size_t level_of(int64_t rank, int64_t other) const;
  /// Ranks of one part of this level in a world of `world` ranks. Not collective.
  int64_t ranks_of_part(size_t level, int64_t world) const;
  /// Resident bytes that `backend` adds to a process: those of MPI. Not collective.
  double memory_of_backend(const std::string& backend) const { return backend == "mpi" ? host.mpi_rss : 0; }
};

/// The value of a table at `size`: between two entries on the line through them, beyond the last on the line through
/// the last two, if that grows, and below the first the first. The table must not be empty. Not collective.
double at_size(const SizeTable& table, double size);

/// Reads a machine from the text of a file; `where` names it in errors. Throws ValueError for text that is not JSON,
/// for keys that are unknown (with the nearest one), missing or of a wrong type, and for values out of their range.
/// Not collective.
Machine parse_machine(const std::string& text, const std::string& where);
/// The text of a file that parse_machine reads. Not collective.
std::string to_json(const Machine& machine);
/// Reads a file. `path` may also be the name of a file of configs/machines, such as "h100". Throws ValueError as above,
/// and if the file is missing. Not collective.
Machine read_machine(const std::string& path);
/// Writes a file; one that exists is replaced. Throws ValueError if it cannot be written. Not collective.
void write_machine(const Machine& machine, const std::string& path);
/// Throws what write_machine would for this path, so that it is known before anything is measured. Not collective.
void check_machine_is_writable(const std::string& path);
/// The names of the files of configs/machines, those that were installed or those of the sources. Not collective.
std::vector<std::string> installed_machines();

/// True if `machine` was measured on a host with as many cores of the same model as this one. Not collective.
bool is_this_host(const Machine& machine);
/// True if `machine` was measured on a host with cores of this model, and this process, one of `processes` that a
/// launcher has started there, may use only a part of them. Not collective.
bool is_bound_to_part(const Machine& machine, int processes);
/// Throws ValueError unless is_this_host. Not collective.
void check_is_this_host(const Machine& machine, const std::string& where);
/// The model of the processor, as the system names it. Not collective.
std::string processor_model();
/// Bytes of memory of this host. Not collective.
int64_t host_memory();

}  // namespace moonhalo
