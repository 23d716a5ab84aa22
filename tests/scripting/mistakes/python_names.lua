local mh = require "moonhalo"
local y = mh.fft.rfft2(mh.ones{2, 2})
--[==[
python_names.lua:2: mh: no function or operator 'fft'
  fix   mh.fft_rfft2(x) is torch.fft.rfft2(x), and so are the others
  2 | local y = mh.fft.rfft2(mh.ones{2, 2})
]==]
