-- SPDX-License-Identifier: Apache-2.0
-- refused(fn, text): fn fails with `text` in a message of three parts, in the same words on every rank. Collective.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

return function(fn, text)
  local message = testing.assert_error(fn, text)
  assert(message:find("\n  have  ", 1, true) and message:find("\n  fix   ", 1, true), "three parts are required: "
      .. message)
  mh._data.check_same("refused", "messages", message)
end
