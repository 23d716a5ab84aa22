-- SPDX-License-Identifier: Apache-2.0
-- own_path(NAME): where this run alone writes the file or folder NAME, the same on all ranks. CTest removes all of them
-- at the end of a test, whose TMPDIR is its own.
math.randomseed()  -- new in every run, and identically on all ranks
local stem = ("%s/moonhalo_%x_"):format(os.getenv("TMPDIR") or "/tmp", math.random(1 << 60))

return function(name) return stem .. name end
