// SPDX-License-Identifier: Apache-2.0
// Files of machines. The keys of an object and their ranges are checked where they are read.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/replace_file.h"

namespace moonhalo {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFix = "\n  fix   docs/planning.md lists the keys; `moonhalo calibrate FILE` writes a file";
const std::vector<std::string> kWork = {"convolution", "product", "attention"};
const std::vector<std::string> kNeighbourWork = {"convolution", "product", "attention", "stream"};
const std::vector<std::string> kDtypes = {"float64", "float32", "float16", "bfloat16"};
const std::vector<std::string> kBackends = {"threads", "mpi", "tcp", "nccl", "staged"};

std::vector<std::string> verb_names() {
  std::vector<std::string> names;
  for (int kind = 0; kind < CommStats::kKinds; ++kind)
    names.emplace_back(CommStats::name(static_cast<CommStats::Kind>(kind)));
  return names;
}

/// An object of the file, with the way to it.
class Fields {
 public:
  Fields(const Json& object, std::string where, std::string path)
      : object_(object), where_(std::move(where)), path_(std::move(path)) {
    if (!object_.is_object()) fail("expected an object", object_);
  }

  void check_keys(const std::vector<std::string>& known, const std::vector<std::string>& required = {}) const {
    for (const auto& [key, value] : object_.items()) {
      TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), key) != known.end(), prefix(), "unknown key '", key, "'",
                        did_you_mean(key, known), "\n  have  keys ", c10::Join(", ", known), kFix);
    }
    for (const std::string& key : required) {
      TORCH_CHECK_VALUE(object_.contains(key), prefix(), "the key '", key, "' is missing\n  have  keys ",
                        c10::Join(", ", keys()), kFix);
    }
  }
  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (const auto& [key, value] : object_.items()) all.push_back(key);
    return all;
  }
  bool has(const std::string& key) const { return object_.contains(key); }
  const Json& at(const std::string& key) const { return object_.at(key); }
  Fields object(const std::string& key) const { return {object_.at(key), where_, child(key)}; }

  std::string string(const std::string& key, const std::string& otherwise = "") const {
    if (!has(key)) return otherwise;
    if (!at(key).is_string()) fail("expected a string", at(key), key);
    return at(key).get<std::string>();
  }
  bool flag(const std::string& key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).is_boolean()) fail("expected true or false", at(key), key);
    return at(key).get<bool>();
  }
  double number(const std::string& key, double least, double most, double otherwise = 0) const {
    return has(key) ? number_of(at(key), key, least, most) : otherwise;
  }
  int64_t integer(const std::string& key, int64_t least, int64_t otherwise) const {
    if (!has(key)) return otherwise;
    const double value = number_of(at(key), key, static_cast<double>(least), 1e15);
    if (value != std::floor(value)) fail("expected an integer", at(key), key);
    return static_cast<int64_t>(value);
  }
  /// A key that is a number: ranks or cores.
  int64_t key_number(const std::string& key, int64_t least) const {
    const bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    TORCH_CHECK_VALUE(digits && std::stoll(key) >= least, prefix(), "the key '", key,
                      "' must be an integer of at least ", least, "\n  have  keys ", c10::Join(", ", keys()), kFix);
    return std::stoll(key);
  }
  SizeTable table(const std::string& key, double least) const {
    const Json& rows = at(key);
    if (!rows.is_array() || rows.empty()) fail("expected a list of pairs [size, value]", rows, key);
    SizeTable result;
    for (const Json& row : rows) {
      if (!row.is_array() || row.size() != 2) fail("expected a pair [size, value]", row, key);
      result.emplace_back(number_of(row[0], key, 0, kMost), number_of(row[1], key, least, kMost));
      const bool grows = result.size() < 2 || result[result.size() - 2].first < result.back().first;
      TORCH_CHECK_VALUE(grows, prefix(key), "sizes must grow\n  have  ", rows.dump(), kFix);
    }
    return result;
  }
  double number_of(const Json& value, const std::string& key, double least, double most) const {
    if (!value.is_number()) fail("expected a number", value, key);
    const double number = value.get<double>();
    const std::string range = least == kTiny  ? "a positive number"
                              : most == kMost ? c10::str("a number from ", least, " on")
                                              : c10::str("a number from ", least, " to ", most);
    TORCH_CHECK_VALUE(std::isfinite(number) && number >= least && number <= most, prefix(key), "expected ", range,
                      ", found ", value.dump(), "\n  have  ", value.dump(), kFix);
    return number;
  }
  [[noreturn]] void fail(const char* expected, const Json& value, const std::string& key = "") const {
    TORCH_CHECK_VALUE(false, prefix(key), expected, ", found ", value.type_name(), "\n  have  ",
                      value.dump().substr(0, 80), kFix);
  }
  std::string prefix(const std::string& key = "") const {
    const std::string path = key.empty() ? path_ : child(key);
    return "machine file '" + where_ + "': " + (path.empty() ? "" : path + ": ");
  }
  static constexpr double kMost = std::numeric_limits<double>::max(), kTiny = std::numeric_limits<double>::min();

 private:
  std::string child(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  const Json& object_;
  std::string where_, path_;
};

constexpr double kMost = Fields::kMost, kTiny = Fields::kTiny;

Machine::Host read_host(const Fields& fields) {
  fields.check_keys({"cores", "memory", "base_rss", "mpi_rss", "processor", "slice"}, {"cores"});
  return {.cores = fields.integer("cores", 1, 1),
          .memory = fields.number("memory", 0, kMost),
          .base_rss = fields.number("base_rss", 0, kMost),
          .processor = fields.string("processor"),
          .slice = fields.number("slice", 0, 1, Machine::Host().slice),
          .mpi_rss = fields.number("mpi_rss", 0, kMost)};
}

std::map<std::string, double> read_rates(const Fields& flops, const std::string& work) {
  if (flops.at(work).is_number()) return {{"", flops.number(work, kTiny, kMost)}};
  const Fields by_dtype = flops.object(work);
  by_dtype.check_keys(kDtypes);
  std::map<std::string, double> rates;
  for (const std::string& dtype : by_dtype.keys()) rates[dtype] = by_dtype.number(dtype, kTiny, kMost);
  TORCH_CHECK_VALUE(!rates.empty(), by_dtype.prefix(), "it has no dtype\n  have  {}", kFix);
  return rates;
}

Machine::Device read_device(const Fields& fields) {
  fields.check_keys({"kind", "memory", "flops", "bandwidth", "efficiency", "host_link", "launch", "dispatch", "jitter"},
                    {"kind", "flops", "bandwidth"});
  Machine::Device device;
  device.kind = fields.string("kind");
  TORCH_CHECK_VALUE(device.kind == "cpu" || device.kind == "cuda", fields.prefix("kind"), "unknown kind '", device.kind,
                    "'", did_you_mean(device.kind, {"cpu", "cuda"}), "\n  have  kinds cpu, cuda", kFix);
  device.memory = fields.number("memory", 0, kMost);
  const Fields flops = fields.object("flops");
  flops.check_keys(kWork, {"product"});
  for (const std::string& work : flops.keys()) device.flops[work] = read_rates(flops, work);
  device.bandwidth = fields.table("bandwidth", kTiny);
  device.efficiency = fields.number("efficiency", 0.01, 1, 1);
  device.host_link = fields.number("host_link", 0, kMost);
  device.launch = fields.number("launch", 0, 1);
  device.dispatch = fields.number("dispatch", 0, 1);
  device.jitter = fields.number("jitter", 0, 1);
  return device;
}

std::vector<Machine::Level> read_levels(const Json& list, const std::string& where) {
  static const Json kNone = Json::object();
  const Fields here(kNone, where, "levels");
  if (!list.is_array() || list.empty()) here.fail("expected a list of levels, the narrowest first", list);
  std::vector<Machine::Level> levels;
  for (size_t i = 0; i < list.size(); ++i) {
    const Fields fields(list[i], where, "levels[" + std::to_string(i) + "]");
    fields.check_keys({"name", "ranks", "latency", "gap", "bandwidth", "shared"}, {"name", "latency", "bandwidth"});
    Machine::Level level{.name = fields.string("name"),
                         .ranks = fields.integer("ranks", 1, 0),
                         .latency = fields.number("latency", 0, 1),
                         .gap = fields.number("gap", 0, 1),
                         .bandwidth = fields.number("bandwidth", kTiny, kMost),
                         .shared = fields.flag("shared", false)};
    const bool last = i + 1 == list.size();
    TORCH_CHECK_VALUE(last || level.ranks > 0, fields.prefix(), "the key 'ranks' is missing\n  have  level '",
                      level.name, "', which is not the last one", kFix);
    TORCH_CHECK_VALUE(!last || level.ranks == 0, fields.prefix("ranks"), "the last level has all ranks\n  have  ",
                      level.ranks, "\n  fix   leave the key out, or add a level for what is wider");
    const bool fits = levels.empty() || last || level.ranks % levels.back().ranks == 0;
    TORCH_CHECK_VALUE(fits, fields.prefix("ranks"), "expected a multiple of the level before\n  have  ", level.ranks,
                      " after ", levels.empty() ? 0 : levels.back().ranks, kFix);
    levels.push_back(std::move(level));
  }
  return levels;
}

Machine::Verbs read_verbs(const Fields& fields) {
  fields.check_keys(verb_names());
  Machine::Verbs verbs;
  for (const std::string& verb : fields.keys()) verbs[verb] = fields.table(verb, 0);
  return verbs;
}

void read_tables(const Fields& root, Machine& machine) {
  if (root.has("neighbours")) {
    const Fields all = root.object("neighbours");
    for (const std::string& cores : all.keys()) {
      const Fields factors = all.object(cores);
      factors.check_keys(kNeighbourWork);
      for (const std::string& work : factors.keys())
        machine.neighbours[all.key_number(cores, 1)][work] = factors.number(work, 0.1, 1000);
    }
  }
  if (root.has("verbs")) {
    const Fields backends = root.object("verbs");
    backends.check_keys(kBackends);
    for (const std::string& backend : backends.keys()) {
      const Fields by_ranks = backends.object(backend);
      for (const std::string& ranks : by_ranks.keys())
        machine.verbs[backend][by_ranks.key_number(ranks, 2)] = read_verbs(by_ranks.object(ranks));
    }
  }
  if (root.has("operators")) {
    const Fields all = root.object("operators");
    for (const std::string& key : all.keys()) {
      const Fields by_cores = all.object(key);
      for (const std::string& cores : by_cores.keys())
        machine.operators[key][by_cores.key_number(cores, 1)] = by_cores.number(cores, 0, 1e6);
    }
  }
}

/// The numbers of a file by their paths, those of lists by the list's.
void gather_paths(const Json& value, const std::string& path, std::vector<std::string>& paths) {
  if (!path.empty()) paths.push_back(path);
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) gather_paths(inner, path.empty() ? key : path + "." + key, paths);
  }
  if (value.is_array()) {
    for (const Json& inner : value) {
      if (inner.is_object() && inner.contains("name") && inner["name"].is_string())
        gather_paths(inner, path + "." + inner["name"].get<std::string>(), paths);
    }
  }
}

void read_sources(const Fields& root, const Json& file, Machine& machine) {
  if (!root.has("sources")) return;
  const Fields fields = root.object("sources");
  Json figures = file;
  figures.erase("sources");
  std::vector<std::string> paths;
  gather_paths(figures, "", paths);
  for (const std::string& path : fields.keys()) {
    TORCH_CHECK_VALUE(std::find(paths.begin(), paths.end(), path) != paths.end(), fields.prefix(),
                      "there is no figure '", path, "'", did_you_mean(path, paths), "\n  have  '", path,
                      "': a path of keys, levels by their names\n  fix   name a figure of the file");
    machine.sources[path] = fields.string(path);
  }
}

Json table_json(const SizeTable& table) {
  Json rows = Json::array();
  for (const auto& [size, value] : table) rows.push_back({size, value});
  return rows;
}

Json device_json(const Machine::Device& device) {
  Json json{{"kind", device.kind}};
  if (device.memory > 0) json["memory"] = device.memory;
  for (const auto& [work, rates] : device.flops) {
    for (const auto& [dtype, rate] : rates) {
      if (dtype.empty()) {
        json["flops"][work] = rate;
      } else {
        json["flops"][work][dtype] = rate;
      }
    }
  }
  json["bandwidth"] = table_json(device.bandwidth);
  if (device.efficiency != 1) json["efficiency"] = device.efficiency;
  if (device.host_link > 0) json["host_link"] = device.host_link;
  json["launch"] = device.launch;
  if (device.dispatch > 0) json["dispatch"] = device.dispatch;
  json["jitter"] = device.jitter;
  return json;
}

Json level_json(const Machine::Level& level) {
  Json json{{"name", level.name}};
  if (level.ranks > 0) json["ranks"] = level.ranks;
  json["latency"] = level.latency;
  if (level.gap > 0) json["gap"] = level.gap;
  json["bandwidth"] = level.bandwidth;
  if (level.shared) json["shared"] = true;
  return json;
}

Json by_number(const std::map<int64_t, std::map<std::string, double>>& all) {
  Json json = Json::object();
  for (const auto& [number, values] : all) json[std::to_string(number)] = values;
  return json;
}

// share/moonhalo/machines where the program is installed, configs/machines where it was built.
std::vector<std::filesystem::path> machine_folders() {
  std::vector<std::filesystem::path> folders;
  Dl_info info;
  std::vector<std::filesystem::path> binaries{"/proc/self/exe"};
  if (dladdr(reinterpret_cast<const void*>(&parse_machine), &info) != 0 && info.dli_fname != nullptr)
    binaries.insert(binaries.begin(), info.dli_fname);
  for (const auto& binary : binaries) {
    std::error_code failed;
    auto folder = std::filesystem::canonical(binary, failed).parent_path();
    for (; !failed && folder.has_relative_path(); folder = folder.parent_path()) {
      folders.push_back(folder / "share" / "moonhalo" / "machines");
      folders.push_back(folder / "configs" / "machines");
    }
  }
  return folders;
}

}  // namespace

Machine parse_machine(const std::string& text, const std::string& where) {
  Json file;
  try {
    file = Json::parse(text, nullptr, true, /*ignore_comments=*/true);
  } catch (const Json::parse_error& error) {
    TORCH_CHECK_VALUE(false, "machine file '", where, "': it is not JSON\n  have  ", error.what(),
                      "\n  fix   correct it there, or run `moonhalo calibrate FILE`");
  }
  const Fields root(file, where, "");
  root.check_keys({"name", "made", "comment", "measured", "quiet", "sources", "host", "device", "neighbours", "levels",
                   "verbs", "operators"},
                  {"name", "host", "device", "levels"});
  Machine machine;
  machine.name = root.string("name");
  machine.made = root.string("made");
  machine.comment = root.string("comment");
  machine.measured = root.flag("measured", false);
  machine.quiet = root.flag("quiet", true);
  machine.host = read_host(root.object("host"));
  machine.device = read_device(root.object("device"));
  machine.levels = read_levels(root.at("levels"), where);
  read_tables(root, machine);
  read_sources(root, file, machine);
  return machine;
}

std::string to_json(const Machine& machine) {
  Json json{{"name", machine.name}, {"made", machine.made}};
  if (!machine.comment.empty()) json["comment"] = machine.comment;
  json["measured"] = machine.measured;
  if (!machine.quiet) json["quiet"] = false;
  json["host"] = {{"cores", machine.host.cores}, {"memory", machine.host.memory}, {"base_rss", machine.host.base_rss}};
  if (machine.host.mpi_rss > 0) json["host"]["mpi_rss"] = machine.host.mpi_rss;
  if (!machine.host.processor.empty()) json["host"]["processor"] = machine.host.processor;
  json["host"]["slice"] = machine.host.slice;
  json["device"] = device_json(machine.device);
  if (!machine.neighbours.empty()) json["neighbours"] = by_number(machine.neighbours);
  for (const Machine::Level& level : machine.levels) json["levels"].push_back(level_json(level));
  for (const auto& [backend, by_ranks] : machine.verbs) {
    for (const auto& [ranks, verbs] : by_ranks) {
      for (const auto& [verb, table] : verbs) json["verbs"][backend][std::to_string(ranks)][verb] = table_json(table);
    }
  }
  for (const auto& [key, by_cores] : machine.operators) {
    for (const auto& [cores, seconds] : by_cores) json["operators"][key][std::to_string(cores)] = seconds;
  }
  if (!machine.sources.empty()) json["sources"] = machine.sources;
  return json.dump(2) + "\n";
}

std::vector<std::string> installed_machines() {
  for (const auto& folder : machine_folders()) {
    std::error_code failed;
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
      if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
    }
    std::sort(names.begin(), names.end());
    if (!names.empty()) return names;
  }
  return {};
}

Machine read_machine(const std::string& path) {
  std::string found = path;
  if (!std::filesystem::exists(found) && path.find('/') == std::string::npos) {
    for (const auto& folder : machine_folders()) {
      const auto candidate = folder / (path + (path.ends_with(".json") ? "" : ".json"));
      if (!std::filesystem::exists(found) && std::filesystem::exists(candidate)) found = candidate.string();
    }
  }
  const std::vector<std::string> known = installed_machines();
  TORCH_CHECK_VALUE(!std::filesystem::is_directory(found), "machine file '", path, "': it is a folder\n  have  ", path,
                    "\n  fix   name the file in it that `moonhalo calibrate FILE` wrote, or one of ",
                    c10::Join(", ", known));
  TORCH_CHECK_VALUE(std::filesystem::is_regular_file(found), "machine file '", path, "': there is no such file",
                    did_you_mean(path, known), "\n  have  no file of that name, and machines ", c10::Join(", ", known),
                    "\n  fix   run `moonhalo calibrate ", path, "` to measure this machine, or name one of these");
  std::ifstream file(found);
  std::ostringstream text;
  text << file.rdbuf();
  TORCH_CHECK_VALUE(file.good(), "machine file '", path, "': it cannot be read\n  have  ", std::strerror(errno),
                    "\n  fix   check its permissions");
  return parse_machine(text.str(), path);
}

namespace {

[[noreturn]] void refuse_machine_file(const std::string& path, const std::string& why) {
  TORCH_CHECK_VALUE(false, "machine file '", path, "': it cannot be written\n  have  ", why,
                    "\n  fix   name a file in a folder that you own");
}

}  // namespace

void check_machine_is_writable(const std::string& path) {
  if (std::filesystem::is_directory(path)) refuse_machine_file(path, "a folder of that name");
  std::ofstream file(unfinished_name(path));
  if (!file) refuse_machine_file(path, std::strerror(errno));
  file.close();
  std::error_code ignored;
  std::filesystem::remove(unfinished_name(path), ignored);
}

void write_machine(const Machine& machine, const std::string& path) {
  const std::error_code failed = replace_file(path, to_json(machine));
  if (failed) refuse_machine_file(path, failed.message());
}

}  // namespace moonhalo
