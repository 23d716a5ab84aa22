-- SPDX-License-Identifier: Apache-2.0
-- plural(1, "rank") -> "1 rank"; plural(2, "batch", "es") -> "2 batches": numbers in messages.
return function(count, one, ending)
  return ("%d %s%s"):format(count, one, count == 1 and "" or ending or "s")
end
