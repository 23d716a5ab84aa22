-- SPDX-License-Identifier: Apache-2.0
-- mh.host.trainers: the last ranks of a session train on snapshots of the solver's fields, while the others solve. New
-- weights come back when they are ready; the solver never waits for them.
--
--     local trainers = mh.host.trainers {ranks = 2, every = 10, fields = {"u"}, weights = net, learn = learn}
--     function step(t) return trainers:step(t) and 1 or 0 end      -- solvers, after each step: whether weights are new
--     function finish() trainers:finish() end                      -- solvers, once: waits for the last weights
--     function serve() return trainers:serve() end                 -- trainers, once: until the solvers finish

local mh = require "moonhalo"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local kOptions = {ranks = "integer", every = "integer", fields = "table", weights = "table", learn = "function"}
local kExample = "mh.host.trainers {ranks = 1, every = 10, fields = {\"u\"}, weights = net, learn = function() ... end}"

local trainers = {}
local Trainers = {}
Trainers.__index, Trainers.__class = Trainers, Trainers

local function check_options(options)
  local known = sorted_keys(kOptions)
  for name in pairs(options) do
    if not kOptions[name] then
      fail(("host.trainers: no option '%s'%s"):format(tostring(name), mh.did_you_mean(tostring(name), known)))
    end
  end
  for _, name in ipairs(known) do
    local value = options[name]
    local found = math.type(value) or type(value)
    if found == "userdata" then found = "table" end
    if found ~= kOptions[name] then
      fail(("host.trainers: option '%s' is a %s\n  have  %s\n  fix   %s"):format(name, kOptions[name], found, kExample))
    end
  end
  if options.every < 1 then
    fail(("host.trainers: there is no step between snapshots\n  have  every = %d\n  fix   every = 1 or more"):format(
        options.every))
  end
  if #options.fields == 0 then
    fail("host.trainers: fields names no field\n  have  an empty list\n  fix   fields = {\"u\"}")
  end
end

--- Parameters and buffers of a module, or the tensors of a list.
local function tensors_of(weights)
  if weights.named_parameters == nil then return weights end
  local all = weights:parameters()
  for _, buffer in ipairs(weights:buffers()) do all[#all + 1] = buffer end
  return all
end

--- `native`: what a session does for it (embed/host_trainers.cpp); nil where there is no solver (moonhalo check), whose
--- ranks then train by themselves in every step that would send a snapshot.
function trainers.new(native, options)
  if type(options) ~= "table" then
    fail(("host.trainers: no table of options is given\n  have  a %s\n  fix   %s"):format(type(options), kExample))
  end
  check_options(options)
  local self = {native = native, steps = 0, every = options.every, fields = options.fields, learn = options.learn,
                weights = options.weights}
  self.trains = native ~= nil and native.divide(options.ranks)
  return setmetatable(self, Trainers)
end

local function check_side(self, trains, call)
  if self.trains == trains then return end
  fail(("host.trainers: %s is for ranks that %s\n  have  a rank that %s\n  fix   ask trainers.trains"):format(
    call, trains and "train" or "solve", trains and "solves" or "trains"))
end

--- On solvers, after each step of theirs. At every `every`-th: new weights are taken if they have come to all solvers
--- (then true is returned), and a snapshot is sent with these numbers unless the trainers still work on one. Collective
--- over the solvers.
function Trainers:step(...)
  check_side(self, false, "step")
  self.steps = self.steps + 1
  if self.steps % self.every ~= 0 then return false end
  if not self.native then
    self.learn(...)
    return true
  end
  local fresh = self.native.take(tensors_of(self.weights))
  if not self.native.under_way() then
    local fields = {}
    for i, name in ipairs(self.fields) do fields[i] = mh.host.fields[name] end
    self.native.request(fields, {...}, tensors_of(self.weights))
  end
  return fresh
end

--- On solvers: waits for the weights that are on their way, takes them (then true), and lets the trainers go.
--- Collective over the solvers.
function Trainers:finish()
  check_side(self, false, "finish")
  return self.native ~= nil and self.native.finish(tensors_of(self.weights))
end

--- On trainers: calls `learn` with each snapshot's numbers, while mh.host.fields are the snapshot's, cut into slabs
--- over the trainers; sends the weights back; until the solvers finish. Returns the number of snapshots. Collective
--- over the trainers.
function Trainers:serve()
  if not self.native then return 0 end
  check_side(self, true, "serve")
  local snapshots = 0
  while true do
    local numbers = self.native.next(self.fields)
    if not numbers then return snapshots end
    -- A trainer that fails parts from the others: none replies before all have learnt, so all solvers receive
    -- the same.
    local fine, problem = pcall(function()
      self.learn(table.unpack(numbers))
      mh.barrier()
    end)
    if not fine then
      self.native.fail(tensors_of(self.weights), tostring(problem))
      error(problem, 0)
    end
    self.native.reply(tensors_of(self.weights))
    snapshots = snapshots + 1
  end
end

strict.methods(Trainers, "Trainer group")

return trainers
