// Likeness by layer: a line a learner, the controls of the one in focus as a band.
import { $, fill, h } from "./dom.js";
import { called } from "./saying.js";
import { answers, change, learner, look, on, onScreen, readOnly, state } from "./store.js";

const METRICS = { sim_aou: "outputs", sim_am_delta: "scores" };
const hidden = new Set();
let metric = "sim_aou", layers = 0;

const deciding = () => [...answers.controls].filter(([, one]) => !one.teaches).map(([name]) => name);
const names = () => onScreen().filter(name => answers.learned.get(name)?.likeness[metric] && name !== "in-context");

function traces() {
  const found = [];
  for (const end of answers.band?.lines[metric] ?? []) if (!hidden.has("controls"))
    found.push({ ...end, fillcolor: end.fill ? `${Plots.css("--grey")}38` : undefined });
  if (!hidden.has("controls")) for (const [, answer] of answers.controls) {
    const line = answer.likeness[metric]?.line;
    if (line && !answer.teaches) found.push({ ...line, mode: "lines" });
  }
  for (const name of names()) if (!hidden.has(name)) found.push(answers.learned.get(name).likeness[metric].line);
  return found;
}

const layout = () => ({
  margin: { l: 52, r: 12, t: 8, b: 44 },
  xaxis: { automargin: false, title: { text: "layer" }, zeroline: false, dtick: layers <= 13 ? 1 : layers <= 25 ? 2 : 4, range: [-0.3, layers - 0.7] },
  yaxis: { automargin: false, zeroline: true, title: { text: "likeness to in-context" }, rangemode: "tozero" },
  shapes: state.view.layer === null ? [] : [{ type: "rect", layer: "below", xref: "x", yref: "paper", x0: state.view.layer - 0.3, x1: state.view.layer + 0.3,
    y0: 0, y1: 1, line: { width: 0 }, fillcolor: "@wash" }],
});

function legend() {
  const key = (name, colour, text = name) => h("button", {
    type: "button", "aria-pressed": String(!hidden.has(name)), "data-series": name, title: "Show or hide",
    onclick: () => { if (!hidden.delete(name)) hidden.add(name); draw(); },
  }, h("span", { class: "key", style: { background: `var(--${colour})` } }), text);
  const found = names().map(name => key(name, learner(name).colour));
  if (answers.controls.size) found.push(key("controls", "grey", `controls of ${state.focus}: ${deciding().map(called).join(", ")}`));
  return found;
}

function choice() {
  const gradient = onScreen().filter(name => name !== "zero-shot" && name !== "in-context");
  fill($("likeness-choice"),
    h("label", {}, "Change of ", h("select", { id: "metric", "aria-label": "What is compared", onchange: event => { metric = event.target.value; draw(); } },
      Object.entries(METRICS).map(([name, text]) => h("option", { value: name, selected: name === metric }, text)))),
    h("label", {}, "in focus ", h("select", { id: "focus", disabled: readOnly, "aria-label": "The learner in focus", onchange: event => change({ focus: event.target.value }) },
      gradient.map(name => h("option", { value: name, selected: name === state.focus }, name)))));
}

export function draw() {
  layers = Math.max(0, ...[...answers.learned.values()].map(one => one.likeness[metric]?.layers.length ?? 0));
  $("focus-name").textContent = state.focus;
  fill($("likeness-legend"), legend());
  Plots.draw($("likeness-plot"), traces(), layout());
  const without = onScreen().filter(name => name !== "zero-shot" && name !== "in-context" && answers.learned.has(name) && !names().includes(name));
  fill($("withheld"), [
    without.length > 0 && h("span", {}, `No line for ${without.join(", ")}: not every layer's attention is changed there, so there is nothing to compare layer by layer. `),
    ...[...answers.controls].filter(([, one]) => one.teaches).map(([name]) => h("span", {}, `Not in the band: ${called(name)}, which answers more queries right than no demonstrations do. `)),
    ...[...answers.withheld].map(([control, reason]) => h("span", {}, `No ${control}: ${reason}. `)),
  ]);
  fill($("layers"), Array.from({ length: layers }, (_, layer) => h("button", {
    type: "button", "aria-pressed": String(layer === state.view.layer), "aria-label": `Layer ${layer}`,
    onclick: () => { look({ layer: layer === state.view.layer ? null : layer }); $("layers").children[layer]?.focus(); },
  }, String(layer))));
}

export function likeness() {
  choice();
  draw();
  $("likeness-plot").on("plotly_click", ({ points: [point] }) => look({ layer: Math.round(point.x) }));
  // Lines of controls come with their band; zero-shot and in-context have none.
  on("answers", events => { if (events.some(one => one.event !== "lesson" && (one.event !== "learned" || (!one.control && one.likeness[metric])))) draw(); });
  on("view", draw);
  on("state", () => { choice(); draw(); });
}
