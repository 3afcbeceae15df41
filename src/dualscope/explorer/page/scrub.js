// Two sliders: the learning rate, and how many steps the gradient learners have taken.
import { $, fill, h } from "./dom.js";
import { answers, change, learner, on, onScreen, state } from "./store.js";

const LOWEST = -4, HIGHEST = 2, NOTCHES = 10; // powers of ten, and notches a power
const toRate = notch => Number((10 ** (LOWEST + notch / NOTCHES)).toPrecision(3));
const toNotch = rate => Math.round((Math.log10(rate) - LOWEST) * NOTCHES);

export function scrub() {
  const rate = h("input", { type: "range", id: "rate", min: 0, max: (HIGHEST - LOWEST) * NOTCHES, step: 1, "aria-label": "Learning rate",
    oninput: event => { out.value = toRate(event.target.value); change({ rate: toRate(event.target.value) }, false); } });
  const out = h("input", { type: "number", id: "rate-exact", min: 0, step: "any", "aria-label": "Learning rate, exactly",
    onchange: event => { if (event.target.value > 0) change({ rate: Number(event.target.value) }, false); draw(); } });
  const steps = h("input", { type: "range", id: "steps", min: 1, step: 1, "aria-label": "Steps of gradient descent",
    oninput: event => change({ steps: Number(event.target.value) === total() ? null : Number(event.target.value) }, false) });
  const taken = h("output", { for: "steps" });
  const total = () => Math.min(answers.lesson?.steps ?? Infinity, state.demonstrations.length);

  function draw() {
    rate.value = toNotch(state.rate);
    if (document.activeElement !== out) out.value = state.rate;
    steps.max = total();
    const now = Math.min(state.steps ?? total(), total());
    steps.value = now;
    steps.disabled = total() < 2;
    taken.textContent = `${now} of ${total()}`;
    $("scrub").hidden = !onScreen().some(name => learner(name).rate);
  }
  fill($("scrub"),
    h("label", {}, "Rate", rate, out),
    h("label", {}, "Steps", steps, taken),
    h("p", { class: "how" }, "Gradient descent takes one step a demonstration, in their order: scrub to see it learn. In-context learning has all of them at any step."));
  on("state", draw);
  on("answers", draw);
  draw();
}
