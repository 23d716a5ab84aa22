// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/forecast/machine.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting {

/// A test of moonhalo plan, with a folder of its own for the script and what a plan writes.
class PlanFolder : public ::testing::Test {
 protected:
  std::string script(const std::string& text) const {
    std::ofstream(path("train.lua")) << text;
    return path("train.lua");
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  /// The file of a plan with --json path("plan.json").
  nlohmann::json json() const { return nlohmann::json::parse(std::ifstream(path("plan.json"))); }
  /// A machine file of this host.
  std::string here() const {
    Machine machine = read_machine("epyc");
    machine.measured = true;
    machine.host.cores = usable_core_count();
    machine.host.processor = processor_model();
    write_machine(machine, path("here.json"));
    return path("here.json");
  }

 private:
  moonhalo::testing::Folder folder_;
};

}  // namespace moonhalo::scripting
