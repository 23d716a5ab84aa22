-- SPDX-License-Identifier: Apache-2.0
-- Two linear layers with a GELU between them: Mlp(features, hidden).
local nn = require "moonhalo".nn

local Mlp = nn.Module:extend("MLP")
function Mlp:init(features, hidden)
  self.fc1 = nn.Linear(features, hidden)
  self.fc2 = nn.Linear(hidden, features)
end
function Mlp:forward(x) return self.fc2(self.fc1(x):gelu()) end

return Mlp
