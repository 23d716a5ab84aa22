"""One rank ends, fails, runs out of memory or makes another call than the others."""

from cases import Case


def on_rank_1(fault, rest="s.collective() s.collective()"):
    return f"s.ready()\nif s.rank == 1 then {fault} end\n{rest}\n"


# Rank 1, or each, keeps tensors of 4 MB until there is no more; a thread's stack does not fit then either.
HOLD = "local held = {} for i = 1, 4096 do held[i] = s.mh.ones{1 << 20} end"
ENDLESS_IN_C = 'local found = ("a"):rep(60):find(("a-"):rep(30) .. "b")'

CASES = [
    Case("exit_0_one", on_rank_1("os.exit(0)")),
    Case("exit_5_one", on_rank_1("os.exit(5)")),
    Case("exit_0_all", "s.ready() os.exit(0)"),
    Case("exit_5_all", "s.ready() os.exit(5)"),
    Case("exit_while_saving", "local file = s.open_h5(2) s.ready() os.exit(5)", watch="field.h5"),
    Case("exit_in_pcall", 's.ready() pcall(os.exit, 0) error("a failure later")'),
    Case("return_early", on_rank_1("return")),
    Case("error_one", on_rank_1('error("the disk of rank 1")')),
    Case("error_all", 's.ready() error("on all")'),
    Case("error_while_saving", 'local file = s.open_h5(2) s.ready() error("before close")', watch="field.h5"),
    Case("error_table", on_rank_1('error{code = 3, text = "no room"}')),
    Case("error_nil", on_rank_1("error()")),
    Case(
        "error_tostring_fails",
        on_rank_1('error(setmetatable({}, {__tostring = function() error("within") end}))'),
        how="threads",
    ),
    Case("error_in_coroutine", on_rank_1('coroutine.wrap(function() error("within") end)()'), how="threads"),
    Case("error_recursion", on_rank_1("local function deeper() return 1 + deeper() end deeper()")),
    Case("error_libtorch", on_rank_1("s.mh.ones{4}:view(3)")),
    Case("another_call", "s.ready() local x = s.field(3) if s.rank == 1 then x:mean():item() else x:sum():item() end"),
    Case("another_shape", "s.ready() s.mh.from_local(s.mh.ones{2, s.rank == 1 and 5 or 4}, s.mesh, {s.mh.Shard(0)})"),
    Case("one_call_more", on_rank_1("s.collective()"), any_rank=True),
    Case("endless_loop_one", on_rank_1("while true do end"), limit=3, any_rank=True),
    Case("endless_loop_others_fail", on_rank_1("while true do end", 'error("of the others")')),
    Case("endless_c_call_others_fail", on_rank_1(ENDLESS_IN_C, 'error("of the others")'), limit=5),
    Case("memory_one_huge", on_rank_1("s.mh.ones{1 << 40}")),
    Case(
        "memory_one",
        "s.wait()\nif s.rank == 1 then " + HOLD + " end\nwhile true do s.collective() end",
        "AS 1 64000000",
    ),
    Case("memory_all", "s.wait()\n" + HOLD, "AS all 64000000"),
    Case(
        "memory_of_lua",
        's.wait()\nlocal held = {} while true do held[#held + 1] = ("x"):rep(1 << 20) .. #held end',
        "AS all 64000000",
    ),
    Case("memory_while_saving", "local file = s.open_h5(2) s.wait()\n" + HOLD, "AS all 64000000", watch="field.h5"),
]
