// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/numpy_dtypes.h"

#include <gtest/gtest.h>

namespace moonhalo::io::test_numpy_dtypes {
namespace {

TEST(NumpyDtypes, NamesAreThoseOfNumpy) {
  EXPECT_EQ(numpy_name(at::kFloat), "f4");
  EXPECT_EQ(numpy_name(at::kBool), "b1");
  EXPECT_EQ(numpy_name(at::kComplexDouble), "c16");
  EXPECT_EQ(numpy_name(at::kBFloat16), "");
  EXPECT_EQ(numpy_dtype("u2"), at::kUInt16);
  EXPECT_EQ(numpy_dtype("i8"), at::kLong);
  for (const char* other : {"", "f", "f1", "c4", "M8", "U3", "i16"}) EXPECT_FALSE(numpy_dtype(other)) << other;
}

}  // namespace
}  // namespace moonhalo::io::test_numpy_dtypes
