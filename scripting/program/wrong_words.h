// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace moonhalo::scripting {

bool is_subcommand(const CLI::App& app, const std::string& word);
/// For a command line that cannot be read: says which subcommand or option is missing or unknown, and which name is
/// near. `words` are those after the program's name. "" where all of them are known.
std::string wrong_word(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace moonhalo::scripting
