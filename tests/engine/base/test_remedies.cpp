// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "moonhalo/engine/base/remedies.h"

namespace moonhalo::test_remedies {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Remedies, AreInTheLanguageOfTheCaller) {
  for (const Remedy remedy : {Remedy::kSameValues, Remedy::kSameDraws, Remedy::kMarkArgument, Remedy::kMakeParameter,
                              Remedy::kMakeShardTensor, Remedy::kComputeTwice, Remedy::kMakeConstant,
                              Remedy::kOwnOfStage, Remedy::kFindCheckpoint}) {
    const std::string cpp = fix(remedy), lua = fixes_in_lua("add: wrong" + cpp + "\n  call  add(x)");
    EXPECT_THAT(cpp, ::testing::StartsWith("\n  fix   "));
    EXPECT_THAT(cpp, AllOf(Not(HasSubstr("mh.")), Not(HasSubstr("t:"))));
    EXPECT_THAT(lua, AllOf(::testing::StartsWith("add: wrong\n  fix   "), ::testing::EndsWith("\n  call  add(x)")));
    EXPECT_THAT(lua, Not(HasSubstr("::")));
  }
  EXPECT_EQ(
      fix(Remedy::kMarkArgument),
      "\n  fix   mh::constant_of_samples(t, mesh) if it is one tensor for all samples, mh::local_batch(t, mesh) if its "
      "rows are this rank's own samples");
  EXPECT_EQ(
      fixes_in_lua(fix(Remedy::kMarkArgument)),
      "\n  fix   mh.constant(t) if it is one tensor for all samples, mh.local_batch(t) if its rows are this rank's "
      "own samples");
  EXPECT_THAT(fixes_in_lua(fix(Remedy::kSameCalls)), HasSubstr("(`next` over a table)"));
  EXPECT_EQ(fixes_in_lua("no remedy"), "no remedy");
}

}  // namespace
}  // namespace moonhalo::test_remedies
