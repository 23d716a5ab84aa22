-- SPDX-License-Identifier: Apache-2.0
-- Runs the test_* functions of the module that the command line names, in order: for ranks that are processes, where
-- `moonhalo test` does not go.

package.path = arg[0]:gsub("support/run_all%.lua$", "?.lua") .. ";" .. package.path

local count = 0
for name, test in pairs(require(arg[1])) do
  if name:find("^test_") then
    test()
    count = count + 1
  end
end
assert(count > 0, "no tests")
