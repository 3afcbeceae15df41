// The heads of the chosen layer: how alike the two changes of their scores are, for the learner in focus.
import { $, few, fill, h } from "./dom.js";
import { answers, look, on, state } from "./store.js";

const values = () => state.view.layer === null ? null : answers.learned.get(state.focus)?.likeness.sim_am_delta?.heads[state.view.layer] ?? null;

// Alike is blue, opposite orange, nothing in common is paper.
export const tint = value => value === null ? "transparent"
  : `color-mix(in srgb, var(${value < 0 ? "--vermilion" : "--blue"}) ${Math.round(40 * Math.min(1, Math.abs(value)))}%, transparent)`;

export function heads() {
  const draw = () => {
    const found = values();
    $("heads").hidden = state.view.layer === null;
    if (state.view.layer === null) return;
    $("heads-title").textContent = `Heads of layer ${state.view.layer}: ${state.focus} beside in-context`;
    fill($("heads-cells"), found === null
      ? h("p", { class: "small" }, `${state.focus} has no likeness of scores in this layer.`)
      : found.map((value, head) => h("button", {
        type: "button", "aria-pressed": String(head === state.view.head), "aria-label": `Head ${head}: ${few(value)}`,
        style: { background: tint(value) },
        onclick: () => { look({ head: head === state.view.head ? null : head }); $("heads-cells").children[head]?.focus(); },
      }, h("small", {}, `head ${head}`), few(value))));
  };
  on("answers", draw);
  on("view", draw);
  on("state", draw);
  draw();
}
