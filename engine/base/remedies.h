// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo {

/// Remedies that name functions, which each language spells in its own way (remedies.cpp has the words). Others are
/// sentences that hold in all languages.
enum class Remedy {
  kSameValues,       ///< a plain tensor that differs between ranks
  kSameDraws,        ///< random numbers that differ between ranks
  kSameCalls,        ///< ranks whose calls differ
  kMarkArgument,     ///< an argument that may be one for all samples, or rows of this rank's own
  kMakeParameter,    ///< a plain tensor that may be a parameter, or this rank's own
  kMakeShardTensor,  ///< the same, where the tensor cannot become samples any more
  kComputeTwice,     ///< a plain tensor that is combined with samples and ShardTensors
  kMakeConstant,     ///< a parameter that is given as samples
  kOwnOfStage,       ///< a tensor in a stage that needs a gradient and is none of its parameters
  kFindCheckpoint,   ///< a path where no checkpoint is
};

/// "\n  fix   ..." in C++, or in Python after speak_python().
std::string fix(Remedy remedy);

/// From now on fix() gives remedies in Python: the process is one of Python. Messages to Lua pass through
/// fixes_in_lua.
void speak_python();

/// `message` with what fix() says in C++ as Lua has it.
std::string fixes_in_lua(std::string message);

}  // namespace moonhalo
