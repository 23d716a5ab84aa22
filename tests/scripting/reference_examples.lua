-- SPDX-License-Identifier: Apache-2.0
-- Every example of the reference prints what it says. MOONHALO_EXAMPLE=PATTERN runs those of some names.
local reference = require "support.reference"

return {
  test_Y09_examples_print_what_they_say = function()
    local wrong = reference.run_examples()
    if #wrong > 0 then error(table.concat(wrong, "\n"), 0) end
  end,
}
