// SPDX-License-Identifier: Apache-2.0
// Errors of TorchScript programs: the Python line that failed, without the interpreter's own words.
#include "moonhalo/engine/imported/script_error.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/frontend/source_range.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <cstdlib>
#include <optional>
#include <sstream>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/imported/script_program.h"

namespace moonhalo::jit {
namespace {

constexpr const char* kInterpreterWords = "The following operation failed in the TorchScript interpreter.\n";
constexpr const char* kModelLine = "\n  model ";
constexpr const char* kPyTorchFiles = "/site-packages/torch/";

std::string without_indent(const std::string& line) {
  const size_t first = line.find_first_not_of(" \t");
  return first == std::string::npos ? "" : line.substr(first);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// `  File "net.py", line 20, in forward`, then the source with a mark below the line.
std::optional<std::string> scripted_place(const std::vector<std::string>& lines, size_t i) {
  constexpr std::string_view kFile = "  File \"", kLine = "\", line ";
  if (!lines[i].starts_with(kFile)) return std::nullopt;
  const size_t end = lines[i].find(kLine);
  if (end == std::string::npos) return std::nullopt;
  const std::string rest = lines[i].substr(end + kLine.size());
  std::string place = lines[i].substr(kFile.size(), end - kFile.size()) + ":" + rest.substr(0, rest.find(','));
  for (size_t k = i + 1; k < lines.size() && !lines[k].starts_with(kFile); ++k) {
    if (lines[k].find("<--- HERE") != std::string::npos) return place + ": " + without_indent(lines[k - 1]);
  }
  return place;
}

// `net.py(20): forward`, of programs that torch.jit.trace made.
std::optional<std::string> traced_place(const std::string& line) {
  const size_t end = line.find("): ");
  const size_t begin = end == std::string::npos ? end : line.rfind('(', end);
  if (begin == std::string::npos || begin == 0 || begin + 1 == end) return std::nullopt;
  const std::string number = line.substr(begin + 1, end - begin - 1);
  if (number.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return without_indent(line.substr(0, begin)) + ":" + number + ": in " + line.substr(end + 3);
}

// The innermost line of the model that is not PyTorch's own, or else the innermost.
std::optional<std::string> place_in(const std::string& trace) {
  std::optional<std::string> innermost, own;
  const std::vector<std::string> lines = lines_of(trace);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find("/torch/jit/_trace.py(") != std::string::npos) break;  // then come the callers of torch.jit.trace
    if (const auto place = scripted_place(lines, i)) {
      innermost = place;
      if (place->find(kPyTorchFiles) == std::string::npos) own = place;
    } else if (const auto traced = traced_place(lines[i])) {
      if (!innermost) innermost = traced;
      if (!own && traced->find(kPyTorchFiles) == std::string::npos) own = traced;
    }
  }
  return own ? own : innermost;
}

bool names_own_line(const std::string& message) {
  for (size_t at = message.find(kModelLine); at != std::string::npos; at = message.find(kModelLine, at + 1)) {
    const std::string line = message.substr(at + 1, message.find('\n', at + 1) - at - 1);
    if (line.find(kPyTorchFiles) == std::string::npos) return true;
  }
  return false;
}

std::string with_place(std::string message, const std::optional<std::string>& place) {
  while (message.ends_with('\n')) message.pop_back();
  return !place || names_own_line(message) ? message : message + kModelLine + *place;
}

struct ScriptError {
  std::string message;
  std::string trace;
};

// The interpreter writes its words, the trace of the stored code, that of the Python code, and "RuntimeError: message".
ScriptError parted(const std::string& text) {
  const std::string original = "Traceback of TorchScript, original code (most recent call last):\n";
  size_t begin = text.rfind(original);
  if (begin == std::string::npos) begin = text.rfind("Traceback of TorchScript");
  if (begin == std::string::npos) return {text, ""};
  const std::string rest = text.substr(begin);
  // The message is behind the last mark, or behind the last line of a traced program's stack.
  size_t end = 0, at = rest.find('\n') + 1;
  while (at < rest.size()) {
    const size_t next = std::min(rest.find('\n', at), rest.size() - 1) + 1;
    const std::string line = rest.substr(at, next - at - 1);
    if (line.find("<--- HERE") != std::string::npos || traced_place(line)) end = next;
    at = next;
  }
  std::string message = rest.substr(end);
  // After the mark the source may go on for a few lines, all of them indented or empty.
  const std::vector<std::string> lines = lines_of(message);
  size_t first = 0;
  while (first < lines.size() && lines[first].find("Error: ") == std::string::npos &&
         lines[first].find("Exception: ") == std::string::npos) {
    ++first;
  }
  if (first < lines.size()) {
    message = lines[first].substr(lines[first].find(": ") + 2);
    for (size_t i = first + 1; i < lines.size(); ++i) message += "\n" + lines[i];
  }
  return {message, rest.substr(0, end)};
}

template <class... Errors>
void throw_as_its_type(const c10::Error& error, const std::string& message) {
  const auto throw_if = [&]<class Error>(const Error*) {
    if (dynamic_cast<const Error*>(&error) != nullptr) throw Error({__func__, __FILE__, __LINE__}, message);
  };
  (throw_if(static_cast<const Errors*>(nullptr)), ...);
}

}  // namespace

bool is_script_error(const std::string& text) { return text.find(kInterpreterWords) != std::string::npos; }

void rethrow_with(const std::string& lines) {
  const auto with_lines = [&lines](std::string message) {
    return lines.empty() || message.find(lines) != std::string::npos ? message : message + lines;
  };
  try {
    throw;
  } catch (const CommError& error) {
    throw CommError(with_lines(error.what()));
  } catch (const c10::Error& error) {
    throw_as_its_type<c10::ValueError, c10::TypeError, c10::IndexError, c10::NotImplementedError, c10::LinAlgError,
                      c10::EnforceFiniteError, c10::OutOfMemoryError, c10::Error>(
        error, with_lines(error.what_without_backtrace()));
  }
  std::abort();  // unreachable: one of these throws
}

void throw_with_model_line(const KeptError& kept, const std::string& text) {
  const ScriptError error = parted(text);
  const std::optional<std::string> place = place_in(error.trace);
  if (kept.error()) {
    try {
      std::rethrow_exception(kept.error());
    } catch (const std::exception& its) {
      const auto* torch_error = dynamic_cast<const c10::Error*>(&its);
      const bool named = names_own_line(torch_error ? torch_error->what_without_backtrace() : its.what());
      rethrow_with(place && !named ? kModelLine + *place : "");
    }
  }
  throw c10::Error({__func__, __FILE__, __LINE__}, with_place(error.message, place));
}

std::string with_model_line(const std::string& message) {
  std::ostringstream trace;
  torch::jit::format_stack_trace(trace, torch::jit::currentCallstack());
  return with_place(message, place_in(trace.str()));
}

}  // namespace moonhalo::jit
