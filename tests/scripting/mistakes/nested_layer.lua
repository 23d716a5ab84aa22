-- mpi: 2
local mh = require "moonhalo"
local nn = mh.nn
local Block = nn.Module:extend("Block")
function Block:init(width) self.fc = nn.Linear(width, 3) end
function Block:forward(x)
  local y = x:relu()
  return self.fc(y)
end
local Net = nn.Module:extend("Net")
function Net:init() self.blocks = nn.ModuleList{Block(4), Block(4)} end
function Net:forward(x)
  for _, block in self.blocks:each() do x = block(x) end
  return x
end
local net = Net()
net(mh.ones{2, 4})
--[==[
nested_layer.lua:8: linear: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x3)
  call  linear(Tensor float32 [2, 3], Tensor float32 [3, 4], Tensor float32 [3])
  fix   the last dim of the first must be the first dim of the second (a layer's in_features); x.mT turns a matrix
  in    blocks.1.fc (Linear) of Net
  8 |   return self.fc(y)
stack traceback:
    nested_layer.lua:8: in function <nested_layer.lua:6>
    nested_layer.lua:13: in function <nested_layer.lua:12>
    nested_layer.lua:17: in main chunk
]==]
