-- SPDX-License-Identifier: Apache-2.0
-- Models of the tests of mh.parallelize.
local mh = require "moonhalo"
local nn = mh.nn

local Mlp = nn.Module:extend("Mlp")
function Mlp:init()
  self.fc1, self.fc2 = nn.Linear(6, 180), nn.Linear(180, 9)  -- of more than 1024 elements, so zero divides them
end
function Mlp:forward(x) return self.fc2(mh.gelu(self.fc1(x))) end

local ConvNet = nn.Module:extend("ConvNet")
function ConvNet:init()
  self.conv1 = nn.Conv2d(2, 30, 3, {padding = 1})
  self.conv2 = nn.Conv2d(30, 4, 3, {padding = 1, bias = false})  -- before a norm its gradient is rounding alone
  self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)
end
function ConvNet:forward(x)
  local h = self.norm(self.conv2(self.conv1(x):relu()))
  return self.head(h:permute{0, 2, 3, 1})
end

--- Its forward takes a sample, {x, target = y}, and gives the loss.
local Trained = nn.Module:extend("Trained")
function Trained:init()
  self.fc1 = nn.Sequential(nn.Linear(6, 8), nn.GELU())
  self.fc2 = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
  self.fc3 = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 7))
  self.fc4 = nn.Linear(7, 3)
end
function Trained:stages() return {self.fc1, self.fc2, self.fc3, self.fc4} end
function Trained:loss(y, sample) return mh.mse_loss(y, sample.target) end
function Trained:forward(sample) return self:loss(self.fc4(self.fc3(self.fc2(self.fc1(sample[1])))), sample) end

--- The same with much to keep and little to hand on; norms keep tensor parallelism away.
local Wide = nn.Module:extend("Wide")
function Wide:init()
  self.fc1 = nn.Sequential(nn.Linear(6, 60), nn.LayerNorm(60), nn.GELU())
  self.fc2 = nn.Sequential(nn.Linear(60, 70), nn.LayerNorm(70))
  self.fc3 = nn.Sequential(nn.Linear(70, 50), nn.LayerNorm(50), nn.Tanh())
  self.fc4 = nn.Linear(50, 3)
end
Wide.stages, Wide.loss, Wide.forward = Trained.stages, Trained.loss, Trained.forward

--- The same with stages that are made again by each call.
local Anew = nn.Module:extend("Anew")
function Anew:init()
  self.a, self.b, self.c, self.d = nn.Linear(6, 8), nn.Linear(8, 9), nn.Linear(9, 7), nn.Linear(7, 3)
end
function Anew:stages()
  return {nn.Sequential(self.a, nn.GELU()), nn.Sequential(self.b, nn.Tanh()), nn.Sequential(self.c, nn.Tanh()), self.d}
end
function Anew:forward(sample)
  local y = sample[1]
  for _, stage in ipairs(self:stages()) do y = stage(y) end
  return self:loss(y, sample)
end
Anew.loss = Trained.loss

return {Mlp = Mlp, ConvNet = ConvNet, Trained = Trained, Wide = Wide, Anew = Anew}
