// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/oracle.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing {

/// Numbers that depend on `name` alone, so that a case is the same in every run and on every machine.
class Draw {
 public:
  explicit Draw(const std::string& name);
  int64_t below(int64_t n);  ///< in [0, n)
  bool percent(int64_t chance) { return below(100) < chance; }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

/// One way to hold the tensors of a call over a mesh.
struct Way {
  std::vector<int64_t> mesh;
  std::vector<Input> inputs;

  bool all_plain() const;
  std::string to_string() const;  ///< "mesh [2]; [9, 4] Shard(0, {3, 6}); [9] plain"
};

/// A way with tensor `first` cut on its dim `dim` over a line of ranks (`dim` -1: held in whatever way comes). The
/// others are cut in the same way, replicated, cut otherwise, Partial or plain; `never_plain` names those that may
/// not stay plain.
Way draw_way(Draw& draw, const List& tensors, std::vector<int64_t> mesh, size_t first, int64_t dim,
             const std::vector<bool>& never_plain = {});

/// Each tensor cut on each of its dims over two or three ranks, then a line of four and two grids of 2 x 2. Never all
/// plain.
std::vector<Way> draw_ways(Draw& draw, const List& tensors, const std::vector<bool>& never_plain = {});

/// The outcome of a program on one way.
struct Verdict {
  std::string wrong;                        ///< values that differ, or an error that is not clear
  std::string refusal;                      ///< a clear error
  std::map<std::string, int64_t> gathered;  ///< operators that no rule covered

  enum class Kind { kRight, kGathered, kRefused, kWrong };
  Kind kind() const;
};

/// True if an error says what there is ("have") and what to do ("fix").
bool is_clear(const std::string& error);

/// Compares `program` on this way with one device, under Fallback::kReplicate.
Verdict judge(const Way& way, const Program& program, Oracle options);

}  // namespace moonhalo::testing
