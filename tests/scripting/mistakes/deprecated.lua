-- mpi: 3
-- status: 0
local mh = require "moonhalo"
local q, r = mh.qr(mh.eye(3))
--[==[
deprecated.lua:4: warning: torch.qr is deprecated in favor of torch.linalg.qr and will be removed in a future PyTorch release.
The boolean parameter 'some' has been replaced with a string parameter 'mode'.
Q, R = torch.qr(A, some)
should be replaced with
Q, R = torch.linalg.qr(A, 'reduced' if some else 'complete')
]==]
