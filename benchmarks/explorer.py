"""How fast an edit is answered: the embedded model, 8 demonstrations, a label flipped again and again.

    python -m benchmarks.explorer [--edits 20] [--threads 2] [--write]

Twice: over HTTP (from the request to the events), and in Chromium (from the press to what is drawn), where there is
one. "First" is when zero-shot and in-context are there, "learners" when every learner shown at first is, "all" when
the controls are, too; each as the fastest of all edits, the median and the slowest. "Processor" is the time that the
server itself computed for an edit: it grows less where other programs use the machine. "Influence" is over HTTP, too:
from the press of "What did each demonstration teach?" to both matrices, after an edit; ``--only-influence`` takes that
time alone. ``--write`` puts the figures
into docs/explorer.md.
"""

import argparse
import http.client
import json
import os
import statistics
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import torch

from benchmarks.page import chromium, installed
from dualscope.explorer.explorer import Explorer
from dualscope.explorer.offer import Offer, first_state
from dualscope.explorer.server import in_background

Times = dict[str, list[float]]
PAGE = Path(__file__).parent.parent / "docs" / "explorer.md"
BEGIN, END = "<!-- figures: python -m benchmarks.explorer --write -->", "<!-- end of figures -->"
FLIP = """async which => {
  const { answers, state } = await import("/page/store.js");
  const began = performance.now(), found = {};
  const card = name => document.querySelector(`[data-learner="${name}"]`);
  const drawn = name => !answers.waiting.has(name) && !card(name).classList.contains("waiting");
  let started = false;
  [...document.querySelectorAll("#demonstrations .label")][which].click();
  return await new Promise((done, fail) => {
    const look = () => {
      const now = performance.now() - began, settled = document.documentElement.dataset.settled;
      const trouble = document.getElementById("trouble");
      if (!trouble.hidden || now > 60000) return fail(new Error(trouble.textContent || "no answer within a minute"));
      started ||= answers.waiting.size > 0 && document.querySelectorAll(".learner.waiting").length > 0;
      if (started && !found.first && drawn("zero-shot") && drawn("in-context")) found.first = now;
      if (started && !found.learners && state.learners.every(drawn)) found.learners = now;
      if (settled) done({ first: now, learners: now, ...found, all: now });
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  });
}"""


def over_http(address: str, explorer: Explorer, edits: int) -> Times:
    parts = urlsplit(address)
    state = first_state(explorer.offer)
    times: Times = {"first": [], "learners": [], "all": [], "processor": []}
    for edit in range(edits + 1):
        one = state["demonstrations"][edit % len(state["demonstrations"])]
        one["label"] = (one["label"] + 1) % len(state["labels"])
        waiting = {"zero-shot", "in-context", *state["learners"]}
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
        began, used = time.perf_counter(), time.process_time()
        headers = {
            "Origin": f"http://{parts.netloc}",
            "X-Dualscope-Token": parse_qs(parts.query)["token"][0],
            "Content-Type": "application/json",
        }
        connection.request("POST", "/api/compute", json.dumps({"page": "benchmark", "state": state}), headers)
        found: dict[str, float] = {}
        for line in connection.getresponse():
            event, now = json.loads(line), time.perf_counter() - began
            if event["event"] == "learned" and event["control"] is None:
                waiting.discard(event["learner"])
            if not waiting & {"zero-shot", "in-context"}:
                found.setdefault("first", now)
            if not waiting:
                found.setdefault("learners", now)
            if event["event"] == "done":
                found["all"], found["processor"] = now, time.process_time() - used
        if edit:  # the first one loads what is imported late
            for name, value in found.items():
                times[name].append(value)
        connection.close()
    return times


def influence(address: str, explorer: Explorer, edits: int) -> Times:
    parts = urlsplit(address)
    state = first_state(explorer.offer)
    times: Times = {"influence": []}
    headers = {
        "Origin": f"http://{parts.netloc}",
        "X-Dualscope-Token": parse_qs(parts.query)["token"][0],
        "Content-Type": "application/json",
    }
    for edit in range(edits + 1):
        one = state["demonstrations"][edit % len(state["demonstrations"])]
        one["label"] = (one["label"] + 1) % len(state["labels"])
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
        began = time.perf_counter()
        asked = json.dumps({"page": "benchmark", "state": state})
        connection.request("POST", "/api/influence", asked, headers)
        events = [json.loads(line) for line in connection.getresponse()]
        if [event["event"] for event in events if event["event"] != "progress"] != [*["influence"] * 2, "done"]:
            raise RuntimeError(f"no two matrices: {events[-1]}")
        if edit:
            times["influence"].append(time.perf_counter() - began)
        connection.close()
    return times


def in_browser(address: str, edits: int) -> Times:
    times: Times = {"first": [], "learners": [], "all": []}
    with chromium() as browser:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("html[data-settled]", state="attached", timeout=60_000)
        for edit in range(edits + 1):
            found = page.evaluate(FLIP, edit % 8)
            for name, value in found.items() if edit else ():
                times[name].append(value / 1000)
    return times


def lines_of(title: str, times: Times) -> list[str]:
    return [f"{title:14}{name:11}{min(t):6.2f}{statistics.median(t):7.2f}{max(t):7.2f} s" for name, t in times.items()]


def write(lines: list[str]) -> None:
    before, _, rest = PAGE.read_text().partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    block = "\n".join(["```text", *lines, "```"])
    PAGE.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only-influence", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.write and asked.only_influence:
        parser.error("--write needs all figures; leave --only-influence out")
    torch.set_num_threads(asked.threads)
    explorer = Explorer(Offer.of())
    explorer.model("embedded")
    learners = ", ".join(first_state(explorer.offer)["learners"])
    busy = os.getloadavg()[0]
    lines = [
        f"embedded, 8 demonstrations, 3 queries, {asked.threads} threads, {asked.edits} edits; {learners}",
        f"{os.cpu_count()} cores, of which other programs kept {busy:.1f} busy",
        f"{'':25}{'least':>6}{'median':>7}{'most':>7}",
    ]
    with in_background(explorer) as address:
        if not asked.only_influence:
            lines += lines_of("over HTTP", over_http(address, explorer, asked.edits))
        lines += lines_of("over HTTP", influence(address, explorer, asked.edits))
        if asked.only_influence:
            pass
        elif installed() is None:
            lines.append("in a browser: skipped, no Chromium is installed")
        else:
            lines += lines_of("in a browser", in_browser(address, asked.edits))
    print("\n".join(lines))
    if asked.write:
        write(lines)


if __name__ == "__main__":
    main()
