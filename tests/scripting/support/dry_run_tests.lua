-- SPDX-License-Identifier: Apache-2.0
-- X14: calls the test_* functions of tests/scripting/NAME.lua in a dry run, for check_dry_runs.py. The words of the
-- script are NAME, and "inputs" where the data sets and machine files that the tests make are written. Values are not
-- judged: they are not computed. Each test that fails is a line "failed TEST: ERROR" on standard output, with
-- "\n" for new lines.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local folder = arg[0]:gsub("support/dry_run_tests%.lua$", "")
package.path = folder .. "?.lua;" .. package.path

if arg[2] == "inputs" then
  mh.h5.open = mh._unwritten.open_h5
  io.open = mh._unwritten.open_file  -- luacheck: ignore
end

-- Only what an assertion says of the values that it was given is left out.
for _, name in ipairs {"assert_close", "assert_all_close", "assert_equal"} do
  local assertion = testing[name]
  testing[name] = function(...)
    local done, problem = pcall(assertion, ...)
    if not done and not tostring(problem):find("assert_%l+: ") then error(problem, 0) end
  end
end

local script = folder .. arg[1] .. ".lua"
arg = {[0] = script}  -- luacheck: ignore
local tests, names = dofile(script), {}
for name in pairs(tests) do
  if type(name) == "string" and name:find("^test_") then names[#names + 1] = name end
end
table.sort(names)
for _, name in ipairs(names) do
  io.stderr:write("test ", name, "\n")  -- the last one is where a crash was
  local done, problem = pcall(tests[name])
  if not done then print(("failed %s: %s"):format(name, (tostring(problem):gsub("\n", "\\n")))) end
end
print(("%d tests"):format(#names))
