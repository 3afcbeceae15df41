// A state is pinned, and what is on the screen is compared with it: what differs, and how every learner's answers do.
import { $, few, fill, h } from "./dom.js";
import { mean } from "./saying.js";
import { adopt, answers, learner, on, onScreen, query, readOnly, settled, state } from "./store.js";

let pin = null;

const snapshot = () => ({ state, learned: new Map(answers.learned) });
const percent = share => share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;

// What differs between two states, in words.
export function differences(one, other) {
  const found = [];
  for (const [key, name] of [["model", "model"], ["template", "template"], ["rate", "rate"], ["focus", "learner in focus"], ["seed", "seed"]])
    if (one[key] !== other[key]) found.push(`${name}: ${one[key]} → ${other[key]}`);
  const step = ({ steps, demonstrations }) => Math.min(steps ?? demonstrations.length, demonstrations.length);
  if (step(one) !== step(other)) found.push(`steps: ${step(one)} → ${step(other)}`);
  if (one.labels.join() !== other.labels.join()) found.push(`label words: ${one.labels.join(", ")} → ${other.labels.join(", ")}`);
  for (const kind of ["demonstrations", "queries"]) {
    if (one[kind].length !== other[kind].length) { found.push(`${kind}: ${one[kind].length} → ${other[kind].length}`); continue; }
    const named = which => which.map(i => i + 1).join(", ");
    const texts = [], labels = [];
    one[kind].forEach((entry, i) => {
      if (JSON.stringify(entry.fields) !== JSON.stringify(other[kind][i].fields)) texts.push(i);
      if (entry.label !== other[kind][i].label) labels.push(i);
    });
    if (texts.length) found.push(`texts of ${kind}: ${named(texts)}`);
    if (labels.length) found.push(`labels of ${kind}: ${named(labels)}`);
  }
  return found;
}

function row(name) {
  const before = pin.learned.get(name), now = answers.learned.get(name);
  if (!before && !now) return null;
  const at = answer => answer?.probabilities[query()]?.[state.queries[query()]?.label];
  const shared = before && now && pin.state.queries[query()] && JSON.stringify(pin.state.queries[query()]) === JSON.stringify(state.queries[query()]);
  const was = shared ? at(before) : null, is = at(now);
  return h("tr", { "data-learner": name },
    h("th", { scope: "row", style: { "box-shadow": `inset 3px 0 var(--${learner(name).colour})`, "padding-left": ".6rem" } }, name),
    h("td", { class: "n", "data-value": was }, percent(was)), h("td", { class: "n", "data-value": is }, percent(is)),
    h("td", { class: "n" }, few(mean(before))), h("td", { class: "n" }, few(mean(now))));
}

export function pinned() {
  if (readOnly) return;
  const draw = () => {
    $("pinned").hidden = pin === null;
    $("pin").textContent = pin === null ? "Pin" : "Pin this instead";
    if (pin === null) return;
    const differ = differences(pin.state, state);
    $("pinned-differences").textContent = differ.length ? `Since then: ${differ.join("; ")}.` : "Nothing has changed since.";
    fill($("pinned-table"), h("table", { class: "grid" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "right answer's probability"), ...["pinned", "now"].map(text => h("th", { scope: "col", class: "n" }, text)),
        ...["likeness, pinned", "now"].map(text => h("th", { scope: "col", class: "n" }, text)))),
      h("tbody", {}, onScreen().map(row))));
  };
  $("pin").addEventListener("click", async () => { await settled(); pin = snapshot(); draw(); });
  $("unpin").addEventListener("click", () => { pin = null; draw(); });
  $("swap").addEventListener("click", () => { const other = pin; pin = snapshot(); adopt(other.state); draw(); });
  for (const what of ["state", "view", "answers"]) on(what, draw);
  draw();
}
