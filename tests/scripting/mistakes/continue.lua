-- ranks: 1
for i = 1, 3 do
  if i == 2 then continue end
  print(i)
end
--[==[
continue.lua:3: syntax error near 'end'
  fix   Lua has no continue: goto next, and ::next:: at the end of the loop
  3 |   if i == 2 then continue end
]==]
