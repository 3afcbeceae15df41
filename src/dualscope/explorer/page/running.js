// Every edit is a job; the next one cancels it. What has been answered already stays until it is answered anew.
import { stream } from "./api.js";
import { write } from "./address.js";
import { $, debounced } from "./dom.js";
import { answers, on, onScreen, readOnly, screen, state, told } from "./store.js";

let running = null;

const status = text => { $("status").textContent = text; };
export const trouble = text => { $("trouble").hidden = !text; $("trouble").textContent = text ?? ""; };

function take(event, asked) {
  if (event.event === "progress") { status(`${event.learner}: pass ${event.pass}, layer ${event.layer + 1} of ${event.layers}`); return; }
  if (event.event === "lesson") answers.lesson = event;
  if (event.event === "learned") {
    const where = event.control ? answers.controls : answers.learned;
    where.set(event.control ?? event.learner, { ...event, asked });
    if (event.control) answers.withheld.delete(event.control);
    else { answers.refused.delete(event.learner); answers.waiting.delete(event.learner); }
  }
  if (event.event === "refused") {
    if (event.control) { answers.controls.delete(event.control); answers.withheld.set(event.control, event.reason); }
    else { answers.refused.set(event.learner, event.reason); answers.learned.delete(event.learner); answers.waiting.delete(event.learner); }
  }
  if (event.event === "band") answers.band = event;
  if (event.event === "failed") throw new Error(event.reason);
  if (event.event === "done") { answers.waiting.clear(); status(`${event.seconds.toFixed(2)} s`); }
  told({ ...event, asked });
}

export async function compute() {
  running?.abort();
  const own = running = new AbortController(), asked = screen();
  delete document.documentElement.dataset.settled;
  answers.waiting = new Set(onScreen());
  if (answers.band && answers.band.of !== state.focus) { answers.band = null; answers.controls.clear(); answers.withheld.clear(); }
  status("…");
  told({ event: "waiting" });
  try {
    for await (const event of stream("/api/compute", { state }, own.signal)) {
      if (own !== running) return;
      if (event.event === "lesson") trouble(null);
      take(event, asked);
    }
  } catch (error) {
    if (own !== running || error.name === "AbortError") return;
    answers.waiting.clear();
    status("");
    trouble(error.message);
    told({ event: "failed" });
  }
}

export function cancel() {
  running?.abort();
  running = null;
  answers.waiting.clear();
  status("stopped");
  told({ event: "cancelled" });
}

export function runs() {
  const later = debounced(compute, 120);
  const remember = debounced(async () => {
    if (readOnly) return;
    const fits = await write(state);
    document.documentElement.dataset.address = fits ? "whole" : "none";
    $("too-long").hidden = fits;
  }, 250);
  on("state", ({ shape }) => { delete document.documentElement.dataset.settled; later(shape ? 0 : 120); remember(); });
  on("view", () => remember());
  addEventListener("keydown", event => { if (event.key === "Escape" && answers.waiting.size && !$("dialog").open) cancel(); });
  remember();
  compute();
}
