// What did each demonstration teach? One label after the other is flipped; a row a query, a column a demonstration.
import { moves } from "./alike.js";
import { stream } from "./api.js";
import { $, few, fill, h } from "./dom.js";
import { hint } from "./hint.js";
import { spoken } from "./moved.js";
import { learner, on, query, state } from "./store.js";
import { trouble } from "./running.js";

let asking = null, found = null;
// All that the matrices are made of; what is looked at changes none of them.
const signature = () => JSON.stringify({ ...state, view: null, learners: null });

function sentence({ asked, matrices, refused }) {
  const name = asked.focus, own = matrices.get(name);
  if (refused.has(name)) return `${name}: ${refused.get(name)}`;
  if (!own) return "";
  if (asked.queries.length < 2) return "With one query there is no correlation, because what is common to all queries is taken out: add another query.";
  if (own.correlation === null) return `What they learn cannot be compared: in-context learning's answers or ${name}'s do not move from query to query.`;
  return `When one label changes at a time, ${moves(name, own.correlation, "0 is chance and 1 is the same way")}`;
}

function matrix({ learner: name, values, demonstrations, seconds, notes }, asked) {
  const most = Math.max(1e-12, ...values.flat().map(value => Math.abs(value ?? 0)));
  const word = at => asked.labels[asked.demonstrations[at].label];
  const next = at => asked.labels[(asked.demonstrations[at].label + 1) % asked.labels.length];
  const cell = (value, i, at) => h("td", {
    class: "n", "data-value": value, style: { background: tinted(value, most) },
    "data-hint": `${name}: ${few(value, 3)}\nquery ${i + 1}, ${asked.labels[asked.queries[i].label]}: ${spoken(asked.queries[i])}\ndemonstration ${at + 1}, ${word(at)} flipped to ${next(at)}: ${spoken(asked.demonstrations[at])}`,
  }, few(value));
  return h("div", { class: "influence", "data-learner": name, style: { "--own": `var(--${learner(name).colour})` } },
    h("h3", {}, name, h("small", {}, `darkest: ${most.toPrecision(2)} · ${seconds.toFixed(2)} s`)),
    h("div", { class: "scroll" }, h("table", { class: "grid", "aria-label": `What each demonstration taught: ${name}` },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "query"), demonstrations.map(at =>
        h("th", { scope: "col", class: `n l${asked.demonstrations[at].label % 6} answer`, "data-hint": `${spoken(asked.demonstrations[at])} ${word(at)}` }, String(at + 1))))),
      h("tbody", {}, values.map((row, i) => h("tr", { class: i === query() ? "chosen" : "" },
        h("th", { scope: "row", "data-hint": spoken(asked.queries[i]) }, String(i + 1)), row.map((value, column) => cell(value, i, demonstrations[column]))))))),
    notes.map(note => h("p", { class: "small" }, note)));
}

// Blue where the label taught the right answer, so that flipping it takes some away; orange where it taught against it.
const tinted = (value, most) => value === null ? "transparent"
  : `color-mix(in srgb, var(${value < 0 ? "--blue" : "--vermilion"}) ${Math.round(40 * Math.abs(value) / most)}%, transparent)`;

function draw() {
  $("teach").textContent = asking ? "Stop" : "What did each demonstration teach?";
  if (!found) return;
  const stale = found.signature !== signature();
  $("influence-tables").classList.toggle("waiting", stale || asking !== null);
  $("influence-sentence").textContent = stale && !asking ? "The screen has changed since: press again." : sentence(found);
  fill($("influence-tables"), [...found.matrices.values()].map(one => matrix(one, found.asked)));
}

function stop() {
  asking?.abort();
  asking = null;
  $("influence-progress").textContent = "";
  $("influence").removeAttribute("aria-busy");
}

async function ask() {
  const own = asking = new AbortController(), asked = state;
  found = { asked, signature: signature(), matrices: new Map(), refused: new Map() };
  $("influence").setAttribute("aria-busy", "true");
  trouble(null);
  draw();
  try {
    for await (const event of stream("/api/influence", { state: asked }, own.signal)) {
      if (own !== asking) return;
      if (event.event === "progress") $("influence-progress").textContent = `${event.learner}: pass ${event.pass}`;
      if (event.event === "influence") { found.matrices.set(event.learner, event); draw(); }
      if (event.event === "refused") found.refused.set(event.learner, event.reason);
      if (event.event === "failed") throw new Error(event.reason);
    }
  } catch (error) {
    if (own !== asking || error.name === "AbortError") return;
    trouble(error.message);
  }
  if (own === asking) { stop(); draw(); }
}

export function influence() {
  hint($("influence-tables"));
  $("teach").addEventListener("click", () => { if (asking) { stop(); draw(); } else ask(); });
  addEventListener("keydown", event => { if (event.key === "Escape" && asking && !$("dialog").open) { stop(); draw(); } });
  on("view", draw);
  on("state", () => { stop(); draw(); });
  draw();
}
