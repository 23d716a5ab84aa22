// SPDX-License-Identifier: Apache-2.0
// "S(0, {5, 4})": placements as text, in plans. A block size per rank may make strings of a megabyte, so they are
// read once, by hand.
#include <c10/util/Exception.h>

#include <cctype>

#include "moonhalo/engine/base/text_place.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/model/parallel_plan.h"

namespace moonhalo {
namespace {

class PlacementText {
 public:
  explicit PlacementText(const std::string& text) : text_(text) {}

  Placement run() {
    skip();
    const std::string kind = word();
    Placement placement = replicate();
    if (kind == "R" || kind == "Replicate") {
      if (take('(')) want(')');
    } else if (kind == "P" || kind == "Partial") {
      placement = partial(addition());
    } else if (kind == "S" || kind == "Shard" || kind == "Stored") {
      placement = cut();
      placement.stored = kind == "Stored";
    } else {
      at_ = 0;
      fail("");
    }
    skip();
    if (at_ < text_.size()) fail("nothing more is required");
    return placement;
  }

 private:
  ReduceOp addition() {
    if (!take('(')) return ReduceOp::kSum;
    skip();
    const std::string operation = word();
    const ReduceOp parsed = operation.empty() ? ReduceOp::kSum : parse_reduce_op(operation);
    want(')');
    return parsed;
  }

  Placement cut() {
    if (!take('(')) fail("a ( is required");
    skip();
    const bool negative = take('-');
    const int64_t dim = number(3, "a dim");
    std::vector<int64_t> sizes;
    skip();
    if (take(',')) {
      skip();
      if (!take('{')) fail("a { is required");
      skip();
      if (!take('}')) {
        do {
          skip();
          sizes.push_back(number(15, "a block size"));
          skip();
        } while (take(','));
        if (!take('}')) fail("a , or } is required");
      }
    }
    want(')');
    return shard(negative ? -dim : dim, std::move(sizes));
  }

  int64_t number(size_t digits, const char* what) {
    const size_t begin = at_;
    int64_t value = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_) {
      if (at_ - begin == digits) fail(std::string(what) + " has at most " + std::to_string(digits) + " digits");
      value = 10 * value + (text_[at_] - '0');
    }
    if (at_ == begin) fail(std::string(what) + " is required");
    return value;
  }

  std::string word() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void want(char c) {
    skip();
    if (!take(c)) fail(std::string("a ") + c + " is required");
  }

  [[noreturn]] void fail(const std::string& what) const {
    const std::string where = what.empty() ? "" : ": " + what + " at character " + std::to_string(at_ + 1);
    TORCH_CHECK_VALUE(false, shortened(text_, at_), " is not a placement", where,
                      "\n  have  Replicate or R, Shard(0), S(0) or S(0, {5, 4}), Stored(0), Partial(sum) or P");
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

Placement parse_placement(const std::string& text) { return PlacementText(text).run(); }

}  // namespace moonhalo
