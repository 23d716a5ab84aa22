// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/lua_messages.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/scripting/core/fix_table.h"

namespace moonhalo::scripting {

namespace {

/// By the type of VALUE in `for NAMES in VALUE do`.
constexpr NamedFix kLooped[] = {
    {"table", "for index, value in ipairs(list) do, or for key, value in pairs(table) do"},
    {"number", "for i = first, last do counts"},
    {"string", "for character in text:gmatch(\".\") do"},
    {"Tensor", "for i, row in x:iter() do"},
    {"Loader", "for batch in loader:batches() do"},
    {"Sampler", "for index in sampler:batches() do"},
    {"Windows", "for batch in set:loader{batch = 1}:batches() do"},
    {"Dataset", "for i, row in data:read():iter() do"},
};

/// Objects that scripts compute with, and that are not tensors yet.
constexpr NamedFix kRead[] = {
    {"Dataset", "data:read() gives its tensor, data[\"0:10\"]:read() that of some rows"},
    {"Selection", "selection:read() gives its tensor"},
    {"Field", "field:read(step) gives a step as a tensor"},
};

/// Methods that Python's lists, dicts and strings have.
constexpr NamedFix kPythonMethods[] = {
    {"append", "list[#list + 1] = value, or table.insert(list, value)"},
    {"extend", "table.move(more, 1, #more, #list + 1, list)"},
    {"items", "for key, value in pairs(table) do"},
    {"keys", "for key in pairs(table) do"},
    {"values", "for key, value in pairs(table) do"},
    {"pop", "table.remove(list)"},
    {"join", "table.concat(list, separator)"},
    {"split", "for word in text:gmatch(\"%S+\") do"},
    {"strip", "text:match(\"^%s*(.-)%s*$\")"},
    {"startswith", "text:sub(1, #head) == head"},
};

/// The packages that scripts in Python begin with.
constexpr NamedFix kPackages[] = {
    {"torch",
     "local mh = require \"moonhalo\" has the functions of torch, mh.nn and mh.optim its modules and optimizers"},
    {"torch.nn", "local nn = require(\"moonhalo\").nn"},
    {"numpy", "tensors are the arrays here: mh.tensor, mh.linspace, x:tolist(), mh.files.read_npy(path)"},
    {"matplotlib", "mh.plot.lines(path, ...) and mh.plot.maps(path, ...) draw pictures"},
    {"h5py", "mh.h5.open(path) reads and writes HDF5 and NetCDF"},
    {"xarray", "mh.data.open(paths) opens files as fields, mh.h5.open(path) as datasets"},
};

/// The text between `before` and `after`, if `text` has both; else "".
std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const size_t begin = text.find(before);
  if (begin == std::string_view::npos) return {};
  text.remove_prefix(begin + before.size());
  const size_t end = text.find(after);
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end);
}

std::string fix_of_call(std::string_view message) {
  const std::string_view kind = between(message, "attempt to call a ", " value (");
  if (message.find(" value (for iterator ") != std::string_view::npos) return fix_of(kLooped, kind);
  const std::string_view method = between(message, " value (method '", "')");
  if (method.empty()) return "";
  if (kind == "nil") return fix_of(kPythonMethods, method);
  return "\n  fix   '" + std::string(method) + "' is a value, not a function: write ." + std::string(method) +
         " without parentheses";
}

/// Elements of lists by a number: list[0], list[i].
std::string fix_of_element(std::string_view message) {
  for (const std::string_view end : {" a nil value (field 'integer index')", " a nil value (field '?')"}) {
    if (message.find(end) == std::string_view::npos) continue;
    return "\n  fix   the table has no such element. Lists count from 1 (dims, rows of tensors and modules of "
           "nn.Sequential "
           "from 0)";
  }
  return "";
}

std::string fix_of_index(std::string_view message) {
  std::string_view name = between(message, "attempt to index a function value (field '", "')");
  if (name.empty()) name = between(message, "attempt to index a function value (method '", "')");
  if (name.empty()) return "";
  return "\n  fix   '" + std::string(name) + "' is a function: call it, object:" + std::string(name) + "(...)";
}

std::string fix_of_value(std::string_view message) {
  if (message.find("attempt to concatenate a nil value") != std::string_view::npos) {
    return "\n  fix   look where the value is assigned; tostring(value) is a string for every value, nil too";
  }
  if (message.find("attempt to concatenate a ") != std::string_view::npos) {
    return "\n  fix   tostring(value) is a string for every value";
  }
  if (message.find("attempt to add a 'string' with a ") != std::string_view::npos ||
      (message.find("attempt to perform arithmetic on a string value") != std::string_view::npos)) {
    return "\n  fix   .. joins strings: \"step \" .. step; tonumber(text) is the number that a string shows";
  }
  return fix_of(kRead, between(message, "attempt to perform arithmetic on a ", " value"));
}

/// The folders in which `require` looked, each once.
std::string folders_of(std::string_view message, const std::string& file) {
  std::vector<std::string_view> folders;
  for (std::string_view rest = message;;) {
    const std::string_view path = between(rest, "\n\tno file '", "'");
    if (path.empty()) break;
    rest.remove_prefix(rest.find(path) + path.size());
    const size_t end = path.rfind(file);
    if (end == std::string_view::npos || path.substr(end) != file + ".lua") continue;
    const std::string_view folder = end == 0 ? "." : path.substr(0, end - 1);
    if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
  }
  std::string text;
  for (const std::string_view folder : folders) text.append(text.empty() ? "" : ", ").append(folder);
  return text;
}

/// The message of `require` for what no file has: Lua's own lists every file that it tried.
std::string require_message(const std::string& message, std::string_view name) {
  const std::string head = message.substr(0, message.find(":\n\t"));
  if (const std::string fix = fix_of(kPackages, name); !fix.empty()) return head + fix;
  if (const std::string near = did_you_mean(name, {"moonhalo"}); !near.empty()) return head + near;
  if (const std::string_view own = between(message, "\n\tno embedded file '", "'"); !own.empty()) {
    return head + "\n  have  no embedded file '" + std::string(own) +
           "'\n  fix   mh has the public parts of Moonhalo: mh.nn, mh.optim";
  }
  std::string file(name);
  std::replace(file.begin(), file.end(), '.', '/');
  return head + "\n  have  " + folders_of(message, file) + "\n  fix   put " + file +
         ".lua into one of these folders, or its own one first: package.path = \"FOLDER/?.lua;\" .. package.path";
}

}  // namespace

std::string with_remedy(std::string message) {
  if (const std::string_view name = between(message, "module '", "' not found:\n\t"); !name.empty()) {
    return require_message(message, name);
  }
  if (message.find('\n') != std::string::npos) return message;
  for (const auto fix : {fix_of_call, fix_of_element, fix_of_index, fix_of_value}) {
    if (const std::string text = fix(message); !text.empty()) return message + text;
  }
  return message;
}

}  // namespace moonhalo::scripting
