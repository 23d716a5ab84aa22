-- SPDX-License-Identifier: Apache-2.0
-- Puts mh.pipeline into `mh`; the file behind it is loaded at the first use.

local mh = ...

mh.pipeline = mh._framed(function(...) return require("moonhalo.internal.pipeline").pipeline(...) end)
