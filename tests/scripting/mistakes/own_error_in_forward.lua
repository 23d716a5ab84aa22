local mh = require "moonhalo"
local nn = mh.nn
local Head = nn.Module:extend("Head")
function Head:forward(x)
  if x:size(1) ~= 2 then
    error("Head: expected 2 channels, got " .. x:size(1))
  end
  return x
end
local net = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), Head()))
net(mh.ones{1, 3})
--[==[
own_error_in_forward.lua:6: Head: expected 2 channels, got 3
  in    1.1 (Head) of Sequential
  6 |     error("Head: expected 2 channels, got " .. x:size(1))
stack traceback:
    own_error_in_forward.lua:6: in function <own_error_in_forward.lua:4>
    own_error_in_forward.lua:11: in main chunk
]==]
