#!/usr/bin/env python3
"""Uses the built site as a reader does, in headless Chromium: opens it from file://, searches, and follows drawn links.
No page may write an error to the console or ask a host. usage: check_site.py FOLDER_OF_HTML [SEED]"""

import json
import random
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

# Words, and whether the first result must be an operator's.
SEARCHED = {"redistribute": False, "halo": False, "fft_irfft2": True}
LINKS, LEAST_PAIRS = 20, 70
LIMIT_S = 60


def start():
    options = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--window-size=1600,1000",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.binary_location = shutil.which("chromium") or ""
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


class Reader:
    def __init__(self, driver, folder):
        self.driver, self.folder, self.problems, self.where = driver, folder, [], ""
        self.requests = 0

    def open(self, url):
        self.where = url
        self.driver.get(url)
        self.look()

    def look(self):
        """Adds console errors and requests of the pages since the last call to the problems."""
        for entry in self.driver.get_log("browser"):
            if entry["level"] == "SEVERE":
                self.problems.append(f"{self.where}: console: {entry['message']}")
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests += 1
                url = message["params"]["request"]["url"]
                if urlsplit(url).scheme not in ("file", "data", "blob"):
                    self.problems.append(f"{self.where}: asks {url}")

    def wait(self, condition, what):
        try:
            return WebDriverWait(self.driver, LIMIT_S).until(condition)
        except Exception as error:
            self.look()
            raise SystemExit("\n".join([*self.problems, f"{self.where}: {what}: {type(error).__name__}"])) from error

    def search(self, word, is_operator):
        self.open((self.folder / "index.html").as_uri())
        field = self.driver.find_element(By.CSS_SELECTOR, "input[name=q]")
        field.send_keys(word)
        field.submit()
        self.wait(
            lambda driver: any(one.text for one in driver.find_elements(By.CSS_SELECTOR, "p.search-summary")),
            "the search does not end",
        )
        found = self.driver.find_elements(By.CSS_SELECTOR, "#search-results ul.search li a")
        if not found:
            self.problems.append(f"the search for '{word}' finds nothing")
            return
        count = len(found)
        first = found[0].get_attribute("href")
        self.look()
        self.open(first)
        if word not in self.driver.find_element(By.TAG_NAME, "body").text.lower():
            self.problems.append(f"{self.where}: found for '{word}', which is not on the page")
        if is_operator and not self.driver.find_elements(By.CSS_SELECTOR, "a[href^='https://docs.pytorch.org/']"):
            self.problems.append(f"{self.where}: found for '{word}', but it has no link to PyTorch's reference")
        print(f"{word}: {count} results, the first is {self.driver.title}")

    def check_pairs(self):
        """From PyTorch shows Python and Lua side by side."""
        self.open((self.folder / "from_pytorch.html").as_uri())
        pairs = self.driver.find_elements(By.CSS_SELECTOR, ".pair")
        for pair in pairs:
            python = pair.find_element(By.CSS_SELECTOR, ".highlight-python").rect
            lua = pair.find_element(By.CSS_SELECTOR, ".highlight-lua").rect
            if lua["x"] < python["x"] + python["width"] or lua["y"] != python["y"]:
                self.problems.append(f"{self.where}: a pair is not side by side: {pair.text[:200]}")
                return
        print(f"{len(pairs)} pairs side by side")
        if len(pairs) < LEAST_PAIRS:
            self.problems.append(f"{self.where}: {len(pairs)} pairs, fewer than {LEAST_PAIRS}")

    def follow(self, draws):
        """A link of the page to another page of the site; the first page where there is none."""
        links = {
            link.split("#")[0]
            for link in (one.get_attribute("href") for one in self.driver.find_elements(By.CSS_SELECTOR, "a[href]"))
            if link and link.startswith("file:") and link.split("#")[0] != self.driver.current_url.split("#")[0]
        }
        target = draws.choice(sorted(links)) if links else (self.folder / "index.html").as_uri()
        if not Path(unquote(urlsplit(target).path)).exists():
            self.problems.append(f"{self.where}: a link to {target}, which does not exist")
            target = (self.folder / "index.html").as_uri()
        self.open(target)
        if not self.driver.find_elements(By.TAG_NAME, "h1"):
            self.problems.append(f"{self.where}: no title")


def main():
    folder, seed = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    driver = start()
    try:
        reader = Reader(driver, folder)
        for word, is_operator in SEARCHED.items():
            reader.search(word, is_operator)
        reader.check_pairs()
        draws = random.Random(seed)
        reader.open((folder / "index.html").as_uri())
        for _ in range(LINKS):
            reader.follow(draws)
    finally:
        driver.quit()
    print("\n".join(reader.problems) if reader.problems else f"{LINKS} links followed, {reader.requests} files read")
    sys.exit(1 if reader.problems or reader.requests == 0 else 0)


if __name__ == "__main__":
    main()
