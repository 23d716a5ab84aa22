// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/torch_messages.h"

#include <string_view>

#include "moonhalo/engine/base/remedies.h"

namespace moonhalo::scripting {

namespace {

struct Translation {
  std::string_view sign;  ///< what the message contains
  std::string_view cut;   ///< where LibTorch's advice begins, which is dropped; empty for none
  std::string_view fix;
};

constexpr Translation kTranslations[] = {
    {"modified by an inplace operation",
     " Hint: ", "write the result elsewhere (y = y + 1 for y:add_(1)), or change a copy, y:clone()"},
    {"backward through the graph a second time", " Specify retain_graph=True",
     "give the first of the two {retain_graph = true}: loss:backward{retain_graph = true}"},
    {"leaf Variable that requires grad is being used in an in-place operation", "",
     "write inside of mh.no_grad(function() ... end), or to a copy, x:clone()"},
    {"to not have been used in the graph", " Set allow_unused=True",
     "mh.grad(outputs, inputs, {allow_unused = true}) gives nil for such an input"},
    {"Tensors of floating point and complex dtype can require gradients", "",
     "convert the values first, x:float() or x:double()"},
    {"mat1 and mat2 shapes cannot be multiplied", "",
     "the last dim of the first must be the first dim of the second (a layer's in_features); x.mT turns a matrix"},
    {"channels, but got", "",
     "give the layer as many in_channels as the input has; the dims are (batch, channels, ...)"},
    {"same dtype, but got", "", "convert one of them: x:float() and x:double() for tensors, net:double() for a module"},
    {"expected scalar type Complex", "", "make the other complex, too: x:to(\"complex64\")"},
    {"but found Complex", "", "make the other complex, too: x:to(\"complex64\")"},
    {") and bias type (", "", "convert one of them: x:float() and x:double() for tensors, net:double() for a module"},
    {") and weight type (", "", "convert one of them: x:float() and x:double() for tensors, net:double() for a module"},
    {"Dimension out of range (expected to be in range of [", "", "dims count from 0, and from the end from -1"},
    {"index out of range in self", "",
     "indices count from 0 to the size of the dim minus 1: nn.Embedding(n, ...) has rows 0 to n - 1"},
    {"can't allocate memory", " Error code",
     "make it smaller, or a ShardTensor: mh.scatter_tensor and mh.distribute_tensor give each rank a block"},
    {"Use .reshape(...) instead", " Use .reshape(", "x:reshape(...), which copies where it must"},
    {"(batched) input to conv", "", "the dims are (batch, channels, ...); x:unsqueeze(0) adds one of size 1"},
    {"to match target batch_size", "",
     "give one class a row: an int64 tensor [batch], or [batch, height, width] for pictures"},
    {"duplicate dims are not allowed", "", "name every dim once"},
    {"is out of bounds.", "", "classes are numbered from 0 and below their number, the input's dim 1"},
    {"is invalid for input of size", "",
     "the sizes must multiply to that number of elements; one may be -1, which is computed"},
    {"at non-singleton dimension", "",
     "dims are matched from the last one; x:unsqueeze(dim) adds one of size 1, which fits every size"},
};

/// LibTorch's own checks begin so, and name a line of its source.
constexpr std::string_view kOwnCheck = "[enforce fail at ";

}  // namespace

std::string in_lua(std::string message) {
  message = fixes_in_lua(std::move(message));
  if (message.find("\n  fix   ") != std::string::npos) return message;
  for (const Translation& known : kTranslations) {
    const size_t sign = message.find(known.sign);
    if (sign == std::string::npos) continue;
    if (const size_t at = message.find(kOwnCheck); at < sign) message.erase(at, sign - at);
    if (const size_t at = known.cut.empty() ? std::string::npos : message.find(known.cut); at != std::string::npos) {
      const size_t end = message.find('\n', at);
      message.erase(at, end == std::string::npos ? end : end - at);
    }
    return message.append("\n  fix   ").append(known.fix);
  }
  return message;
}

}  // namespace moonhalo::scripting
