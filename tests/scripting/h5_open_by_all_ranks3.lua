-- SPDX-License-Identifier: Apache-2.0
-- Every rank opens one path to write, and only some of them write: whatever the order in which they open and close.
local mh = require "moonhalo"
local own_path = require "support.own_path"
local t = mh.testing

local tests, first = {}, mh.rank() == 0

--- Runs `work` on the first rank alone, then on the others.
local function in_order(work)
  if first then work() end
  mh.barrier()
  if not first then work() end
  mh.barrier()
end

local function expect_keys(path, keys)
  local file <close> = mh.h5.open(path)
  t.assert_equal(file:keys(), keys)
  mh.barrier()
end

function tests.test_who_wrote_nothing_replaces_nothing()
  local path = own_path "first_closes_first.h5"
  local out = mh.h5.open(path, "w")
  mh.barrier()
  if first then out:write("u", mh.ones{3, 4}) end
  in_order(function() out:close() end)
  expect_keys(path, {"u"})
end

function tests.test_who_wrote_nothing_and_closes_first()
  local path = own_path "first_closes_last.h5"
  local out = mh.h5.open(path, "w")
  if first then out:write("u", mh.ones{3, 4}) end
  if not first then out:close() end
  mh.barrier()
  if first then out:close() end
  mh.barrier()
  expect_keys(path, {"u"})
end

function tests.test_who_wrote_nothing_and_opens_late()
  for _, mode in ipairs{"w", "a"} do
    local path = own_path(mode .. "_opens_late.h5")
    in_order(function()
      local out <close> = mh.h5.open(path, mode)
      if first then out:write("u", mh.ones{3, 4}) end
    end)
    expect_keys(path, {"u"})
  end
end

function tests.test_a_file_that_nobody_wrote_is_empty()
  local path = own_path "empty.h5"
  mh.h5.open(path, "w"):close()
  mh.barrier()
  expect_keys(path, {})
end

function tests.test_the_same_path_is_written_again()
  local path = own_path "again.h5"
  for _, name in ipairs{"u", "v"} do
    local out = mh.h5.open(path, "w")
    out:write(name, mh.ones{2})
    out:close()
    expect_keys(path, {name})
  end
  mh.h5.open(path, "w"):close()
  mh.barrier()
  expect_keys(path, {})
end

function tests.test_different_datasets_are_an_error_that_names_one()
  for _, mode in ipairs{"w", "a"} do
    local path = own_path(mode .. "_differs.h5")
    local out = mh.h5.open(path, mode)
    out:write("x", mh.ones{2})
    if first then out:write("u", mh.ones{3, 4}) end
    mh.barrier()
    if first then out:close() end
    mh.barrier()
    if not first then
      t.assert_error(function() out:close() end,
        'close: file "' .. path .. '": only some ranks wrote dataset "u" [3, 4]\n' ..
        "  have  a file of another rank with it, which has the name now, and this rank's without\n" ..
        "  fix   write it on all ranks, or open the file on one rank only")
    end
    mh.barrier()
    expect_keys(path, {"u", "x"})
  end
end

function tests.test_ranks_add_one_after_the_other()
  local path = own_path "in_turn.h5"
  for rank = 0, mh.world_size() - 1 do
    if mh.rank() == rank then
      local out <close> = mh.h5.open(path, "a")
      out:write("from_" .. rank, mh.ones{2})
    end
    mh.barrier()
  end
  expect_keys(path, {"from_0", "from_1", "from_2"})
end

function tests.test_one_rank_alone_opens_and_writes()
  local path = own_path "alone.h5"
  if mh.rank() == 2 then mh.h5.open(path, "w"):close() end
  mh.barrier()
  expect_keys(path, {})
end

return tests
