#!/usr/bin/env python3
"""Uses a page of `moonhalo report` as a reader does, in headless Chromium: makes a run of 20 metrics and 10,000 steps
with a profile, moves the pointer over its curves, and compares what is shown with what was logged. The page is below
2 MB, writes nothing to the console and asks no host. usage: check_report.py PROGRAM [SEED]"""

import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check_site import Reader, start
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

METRICS, STEPS, COLUMNS = 20, 10000, 500
MOST_BYTES = 2_000_000
LEFT, RIGHT, WIDTH = 64, 12, 640  # of a curve, as in scripting/lua/internal/report_page.lua
SCRIPT = f"""local mh = require "moonhalo"
local net = mh.nn.Linear(4, 1)
local opt = mh.optim.SGD(net:parameters(), {{lr = 0.01}})
for _ = 1, 3 do net(mh.ones{{2, 4}}):sum():backward() opt:step() end
for step = 1, {STEPS} do
  local record = {{step = step}}
  for m = 1, {METRICS} do
    record["metric/" .. m] = math.sin(step / 500 + m) + mh.rand({{1}}):item() / 10 + (step == 5003 and 9 or 2)
  end
  mh.log(record)
end
"""


def make_page(program, folder):
    """The page of a new run, and its records by step."""
    (folder / "train.lua").write_text(SCRIPT)
    words = ["run", "train.lua", "--quiet", "--ranks", "1", "--profile", "--profile-steps", "2:3", "--run", "fit"]
    subprocess.run([program, *words], cwd=folder, check=True)
    (run,) = (folder / "runs").iterdir()
    subprocess.run([program, "report", run], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return run / "report.html", {record["step"]: record for record in map(json.loads, lines)}


def hover(driver, chart, step):
    """What stands under the pointer at a step: the step that is shown, and its value."""
    area = chart.find_element(By.TAG_NAME, "svg")
    x = (LEFT + (step - 1) / (STEPS - 1) * (WIDTH - LEFT - RIGHT)) / WIDTH * area.size["width"]
    ActionChains(driver).move_to_element_with_offset(area, round(x - area.size["width"] / 2), 0).perform()
    found = re.fullmatch(r"\S+  step (\d+): (\S+)", chart.find_element(By.CSS_SELECTOR, ".tip").text)
    return (int(found[1]), float(found[2])) if found else (None, None)


def check_curves(reader, records, draws):
    charts = reader.driver.find_elements(By.CSS_SELECTOR, ".chart")
    if len(charts) != METRICS:
        reader.problems.append(f"{len(charts)} charts, expected {METRICS}")
    for chart in draws.sample(charts, 5):
        name = chart.find_element(By.TAG_NAME, "h3").text
        for wanted in (1, draws.randint(1, STEPS), 5003, STEPS):
            step, value = hover(reader.driver, chart, wanted)
            if step is None or abs(step - wanted) > 2 * STEPS / COLUMNS or value != records[step][name]:
                reader.problems.append(f"{name}: step {wanted} shows {step}: {value}")


def main():
    program, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    driver = start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path, records = make_page(program, Path(folder))
            reader, draws, size = Reader(driver, path.parent), random.Random(seed), path.stat().st_size
            if size >= MOST_BYTES:
                reader.problems.append(f"{size} bytes, expected less than {MOST_BYTES}")
            reader.open(path.as_uri())
            check_curves(reader, records, draws)
            driver.find_element(By.ID, "log").click()
            check_curves(reader, records, draws)
            if not driver.find_elements(By.CSS_SELECTOR, "svg.flame rect"):
                reader.problems.append("no flame graph")
            reader.look()
            if reader.requests != 1:
                reader.problems.append(f"{reader.requests} files read, expected the page alone")
    finally:
        driver.quit()
    print("\n".join(reader.problems) if reader.problems else f"{METRICS} curves of {STEPS} steps: {size} bytes")
    sys.exit(1 if reader.problems else 0)


if __name__ == "__main__":
    main()
