// Three guided scenes: each changes what is on the screen, step by step, and ends with the sentence that it promises.
import { moves } from "./alike.js";
import { $, few, fill, h } from "./dom.js";
import { compareFromHere, correlationOf, flipped } from "./moved.js";
import { called, likenessSentence, mean, right, strongest } from "./saying.js";
import { bestRate } from "./scrub.js";
import { answers, change, readOnly, settled, start, state } from "./store.js";

const BEAT = 900; // milliseconds that a step is looked at
const MATTERS = 0.05; // of a probability: below, labels hardly matter

const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const next = one => ({ ...one, label: (one.label + 1) % state.labels.length });
const flip = which => change({ demonstrations: state.demonstrations.map((one, i) => which(i) ? next(one) : one) });
const fresh = () => change({ ...start.state, view: { ...start.state.view } });

const SCENES = {
  "labels-matter": {
    title: "Labels matter",
    promise: "Ends with: do the labels matter here, and by how much?",
    steps: [
      ["The first screen: demonstrations with their right labels.", fresh],
      ["From here on we compare.", compareFromHere],
      ["Every second label is changed; the sentences stay.", () => flip(i => i % 2 === 0)],
    ],
    end() {
      const own = flipped("in-context"), changed = Math.ceil(state.demonstrations.length / 2);
      const by = `with ${counted(changed, "label")} of ${state.demonstrations.length} changed, in-context learning's probability of the right answers moves by ${(100 * own.points).toFixed(0)} points on average`;
      return own.points >= MATTERS ? `The labels matter: ${by}.` : `The labels hardly matter here: ${by}. The task is recognised, not learned from them.`;
    },
  },
  "flip-them-all": {
    title: "Flip them all",
    promise: "Ends with: who follows the labels when all of them are wrong?",
    steps: [
      ["The first screen: demonstrations with their right labels.", fresh],
      ["From here on we compare.", compareFromHere],
      ["Every label becomes the next one.", () => flip(() => true)],
    ],
    end() {
      const n = state.queries.length, [icl, own] = [flipped("in-context"), flipped(state.focus)];
      const alike = own && correlationOf(state.focus);
      return `With every label flipped, in-context learning changes its answer to ${icl.changed} of ${counted(n, "query").replace("querys", "queries")}`
        + (own ? `, ${state.focus} to ${own.changed}; ${moves(state.focus, alike, "1 is the same way and -1 the opposite way")}` : ".");
    },
  },
  "is-it-descent": {
    title: "Is it gradient descent?",
    promise: "Ends with: is descent more like in-context learning than its controls?",
    steps: [
      ["The first screen, with gradient descent in focus.", fresh],
      ["Gradient descent gets its best rate.", bestRate],
      ["Its controls learn nothing: they are the grey band.", () => {}],
    ],
    end() {
      const own = mean(answers.learned.get(state.focus)), top = strongest();
      if (own === null || !top) return "Is it gradient descent? There is no likeness to compare on this screen.";
      const [name, control] = top;
      return own > mean(control)
        ? `Is it gradient descent? This screen does not rule it out: ${likenessSentence()}`
        : `Is it gradient descent? Not by this measure: ${few(own)} of 1 for ${state.focus}, and ${few(mean(control))} for ${called(name)}, with nothing to learn from.`;
    },
  },
};

let running = null;

const show = (scene, text, ended) => {
  $("scene").hidden = false;
  $("scene").toggleAttribute("data-ended", ended);
  $("scene-title").textContent = scene.title;
  $("scene-text").textContent = text;
  $("scene-stop").textContent = ended ? "Close" : "Stop";
};

export async function play(id) {
  const scene = SCENES[id], own = running = {};
  document.querySelectorAll("[data-scene]").forEach(button => button.setAttribute("aria-pressed", String(button.dataset.scene === id)));
  for (const [i, [text, act]] of scene.steps.entries()) {
    show(scene, `${i + 1} of ${scene.steps.length}. ${text}`, false);
    await act();
    await Promise.all([settled(), new Promise(done => setTimeout(done, BEAT))]);
    if (running !== own) return;
    if (!document.documentElement.dataset.settled) { stop(); return; }
  }
  show(scene, scene.end(), true);
  document.querySelectorAll("[data-scene]").forEach(button => button.setAttribute("aria-pressed", "false"));
}

function stop() {
  running = null;
  $("scene").hidden = true;
  document.querySelectorAll("[data-scene]").forEach(button => button.setAttribute("aria-pressed", "false"));
}

export function scenes() {
  if (readOnly) return;
  fill($("scenes"), "Show me: ", Object.entries(SCENES).map(([id, { title, promise }]) =>
    h("button", { type: "button", "data-scene": id, title: promise, "aria-pressed": "false", onclick: () => play(id) }, title)));
  $("scene-stop").addEventListener("click", stop);
}
