// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <hdf5.h>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io::test_h5_scope {
namespace {

herr_t count_failures(hid_t, void* count) {
  ++*static_cast<int*>(count);
  return 0;
}

void fail_in_hdf5() { H5Dclose(H5I_INVALID_HID); }

TEST(H5Scope, TheHostsHandlerHearsNothingUntilTheOutermostScopeEnds) {
  int heard = 0;
  H5E_auto2_t before = nullptr;
  void* data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &before, &data);
  H5Eset_auto2(H5E_DEFAULT, count_failures, &heard);

  fail_in_hdf5();
  EXPECT_EQ(heard, 1);
  {
    const h5::Scope outer;
    {
      const h5::Scope inner;
      fail_in_hdf5();
    }
    fail_in_hdf5();
    EXPECT_EQ(heard, 1);
  }
  fail_in_hdf5();
  EXPECT_EQ(heard, 2);

  H5Eset_auto2(H5E_DEFAULT, before, data);
}

}  // namespace
}  // namespace moonhalo::io::test_h5_scope
