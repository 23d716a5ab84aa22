-- ranks: 3
-- status: 0
local file = io.open(os.getenv("SCRATCH") .. "/loss.txt", "w")
file:write("loss 0.5\n")
file:close()
--[==[
one_file_of_all.lua:3: warning: io.open: several ranks write 'SCRATCH/loss.txt', each over what another has written
  fix   let one rank write, if mh.rank() == 0 then ... end; mh.log{...} does so; or give each rank a name of its own, with mh.rank() in it
]==]
