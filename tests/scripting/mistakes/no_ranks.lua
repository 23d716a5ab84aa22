-- options: --ranks 0
-- ranks: 1
-- status: 2
print("never")
--[==[
--ranks: '0' is not a number of ranks; allowed are 1, 2, 3, ...
Run with --help for more information.
]==]
