// Two sliders: the learning rate, and how many steps the gradient learners have taken, which can be played.
import { stream } from "./api.js";
import { $, fill, h } from "./dom.js";
import { trouble } from "./running.js";
import { answers, change, learner, on, onScreen, readOnly, settled, start, state } from "./store.js";

const LOWEST = -4, HIGHEST = 2, NOTCHES = 10; // powers of ten, and notches a power
const BEAT = 450; // milliseconds that a step is looked at
const toRate = notch => Number((10 ** (LOWEST + notch / NOTCHES)).toPrecision(3));
const toNotch = rate => Math.round((Math.log10(rate) - LOWEST) * NOTCHES);
const total = () => Math.min(answers.lesson?.steps ?? Infinity, state.demonstrations.length);
const spelled = power => power < 0 ? `.${"0".repeat(-power - 1)}1` : String(10 ** power);

let asking = false, playing = false;

// The rate at which the learner in focus is most accurate, from the model's card or from other examples of the task.
export async function bestRate() {
  if (asking) return;
  asking = true;
  $("best-rate").textContent = "Searching …";
  try {
    for await (const event of stream("/api/rate", { state })) {
      if (event.event === "progress") $("best-rate").textContent = `Searching: pass ${event.pass}`;
      if (event.event === "failed") throw new Error(event.reason);
      if (event.event !== "rate") continue;
      $("rate-why").textContent = `${event.rate}: ${event.why}.`;
      if (event.rate !== state.rate) change({ rate: event.rate }, false);
    }
  } catch (error) { trouble(error.message); }
  asking = false;
  $("best-rate").textContent = "Best rate";
}

async function play() {
  if (playing) { playing = false; return; }
  playing = true;
  $("play").textContent = "Stop";
  for (let step = 1; playing && step <= total(); step++) {
    change({ steps: step === total() ? null : step }, false);
    await Promise.all([settled(), new Promise(done => setTimeout(done, BEAT))]);
  }
  playing = false;
  $("play").textContent = "Play";
}

export function scrub() {
  const rate = h("input", { type: "range", id: "rate", min: 0, max: (HIGHEST - LOWEST) * NOTCHES, step: 1, "aria-label": "Learning rate", disabled: readOnly,
    oninput: event => { out.value = toRate(event.target.value); change({ rate: toRate(event.target.value) }, false); } });
  const out = h("input", { type: "number", id: "rate-exact", min: 0, step: "any", "aria-label": "Learning rate, exactly", disabled: readOnly,
    onchange: event => { if (event.target.value > 0) change({ rate: Number(event.target.value) }, false); draw(); } });
  const steps = h("input", { type: "range", id: "steps", min: 1, step: 1, "aria-label": "Steps of gradient descent", disabled: readOnly,
    oninput: event => change({ steps: Number(event.target.value) === total() ? null : Number(event.target.value) }, false) });
  const taken = h("output", { for: "steps" }), last = h("span");
  const powers = Array.from({ length: HIGHEST - LOWEST + 1 }, (_, i) => h("span", {}, spelled(LOWEST + i)));

  function draw() {
    rate.value = toNotch(state.rate);
    if (document.activeElement !== out) out.value = state.rate;
    steps.max = total();
    const now = Math.min(state.steps ?? total(), total());
    steps.value = now;
    steps.disabled = readOnly || total() < 2;
    taken.textContent = `${now} of ${total()}`;
    last.textContent = String(total());
    $("scrub").hidden = !onScreen().some(name => learner(name).rate);
  }
  fill($("scrub"),
    h("div", { class: "slider" }, h("label", {}, "Rate", rate, out), h("div", { class: "scale", "aria-hidden": "true" }, powers),
      h("p", { class: "small" }, !readOnly && h("button", { type: "button", id: "best-rate", onclick: bestRate }, "Best rate"), " ", h("span", { id: "rate-why" }))),
    h("div", { class: "slider" }, h("label", {}, "Steps", steps, taken), h("div", { class: "scale", "aria-hidden": "true" }, h("span", {}, "1"), last),
      h("p", { class: "small" }, !readOnly && h("button", { type: "button", id: "play", onclick: play }, "Play"))),
    h("p", { class: "how" }, "Gradient descent takes one step a demonstration, in their order: play to see it learn. In-context learning has all of them at any step."));
  on("state", draw);
  on("answers", draw);
  draw();
}
