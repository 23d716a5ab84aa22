-- SPDX-License-Identifier: Apache-2.0
-- Runs scripts, and the Lua blocks of pages. The blocks of a page are one program, with the line numbers of the page.
-- A line that ends in `--> TEXT` compares TEXT with what was printed before it, `--> on 3 ranks: TEXT` only on as
-- many ranks, `--> on 3 ranks: A / B / C` with the text of each rank. run_pages.py starts it in a folder of its
-- own. Y10.
local mh = require "moonhalo"
local reference = require "support.reference"

local wrong = 0

local function complain(text)
  wrong = wrong + 1
  print(text)
end

--- The line with a comparison behind it, or the line itself.
local function compared(line, number)
  local code, expected = line:match("^(.-)%s*%-%->%s(.*)$")
  return code and ("%s __compare(%d, %q)"):format(code, number, expected) or line
end

--- The Lua blocks of a page as one chunk, and how many comparisons it has.
local function chunk_of(path)
  local lines, number, inside, count = {}, 0, path:find("%.lua$") ~= nil, 0
  for line in io.lines(path) do
    number = number + 1
    local fence = line:match("^```(%w*)%s*$")
    if fence then
      inside = fence == "lua"
      lines[number] = ""
    else
      lines[number] = inside and compared(line, number) or ""
      if lines[number] ~= line and inside then count = count + 1 end
    end
  end
  return table.concat(lines, "\n"), count
end

--- The part of an expectation that is for this rank; nil if it is for another number of ranks.
local function for_this_rank(expected)
  local ranks, text = expected:match("^on (%d+) ranks?: (.*)$")
  if not ranks then return expected end
  if tonumber(ranks) ~= mh.world_size() then return nil end
  local parts = {}
  for part in (text .. " / "):gmatch("(.-) / ") do parts[#parts + 1] = part end
  return parts[mh.rank() + 1] or parts[1]
end

local function run(path)
  local printed = {}
  local scope = setmetatable({
    print = function(...) printed[#printed + 1] = reference.text_of(...) end,
    __compare = function(number, expected)
      local have = table.concat(printed, " | ")
      printed = {}
      local wanted = for_this_rank(expected)
      if wanted and have ~= wanted then
        complain(("%s:%d, rank %d of %d\n    page  %s\n    have  %s"):format(path, number, mh.rank(), mh.world_size(),
            wanted, have))
      end
    end,
  }, {__index = _G, __newindex = function(_, name) error("global " .. name .. ": use local", 2) end})
  local code, count = chunk_of(path)
  local chunk, message = load(code, "@" .. path, "t", scope)
  if not chunk then return complain(message) end
  mh.manual_seed(0)
  local ok, failure = xpcall(chunk, function(text) return tostring(text) end)
  if not ok then complain(("%s, rank %d of %d: %s"):format(path, mh.rank(), mh.world_size(), failure)) end
  return count
end

local count = 0
for _, path in ipairs(arg) do
  count = count + (run(path) or 0)
  mh.barrier()  -- thread ranks share settings of the process
  mh.set_default_dtype("float32")
  mh.set_grad_enabled(true)
  mh.barrier()
end
if wrong > 0 then mh.fail(("%d differences"):format(wrong)) end
if mh.rank() == 0 then print(("%d programs, %d comparisons, %d ranks"):format(#arg, count, mh.world_size())) end
