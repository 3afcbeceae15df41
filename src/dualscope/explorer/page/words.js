// The words that a head looks at: the same text once for each way of looking at it.
import { stream } from "./api.js";
import { $, fill, h } from "./dom.js";
import { hint } from "./hint.js";
import { learner, on, query, readOnly, state } from "./store.js";
import { trouble } from "./running.js";

let asking = null, found = null;
const wanted = () => state.view.layer !== null && state.view.head !== null;

function word(one, weight, most, last) {
  const number = weight === null ? "not seen" : `weight ${weight.toPrecision(3)}`;
  return h("span", {
    class: `token ${one.kind}${one.unknown ? " unknown" : ""}${last ? " read" : ""}`, style: { "--w": weight === null ? 0 : weight / most },
    "data-weight": weight === null ? undefined : weight, "data-hint": `${one.text.trim() || "space"}\n${number}${one.unknown ? "\nunknown to the model" : ""}${last ? "\nread here" : ""}`,
  }, one.text);
}

function reading({ learner: name, title, weights }) {
  const most = Math.max(1e-12, ...weights.filter(Boolean).flat());
  const seen = found.parts.map((part, i) => [part, weights[i]]).filter(([, own]) => own !== null);
  return h("div", { class: "reading", style: { "--own": `var(--${learner(name).colour})` }, "data-learner": name },
    h("h3", {}, title[0].toUpperCase() + title.slice(1), h("small", {}, ` · darkest: ${most.toPrecision(2)}`)),
    h("p", { class: "text" }, seen.map(([part, own]) => h("span", { class: "part", title: part.name },
      part.words.map((one, i) => word(one, own[i], most, part === found.parts.at(-1) && i === part.words.length - 1))))));
}

function draw() {
  const elsewhere = readOnly && !(found && found.layer === state.view.layer && found.head === state.view.head && found.query === query());
  $("tokens").hidden = !wanted() || elsewhere;
  if ($("tokens").hidden || !found) return;
  $("tokens-title").textContent = `Words: layer ${found.layer}, head ${found.head}, query ${found.query + 1}`;
  fill($("tokens-rows"), found.readings.map(reading), found.notes.map(note => h("p", { class: "small" }, note)));
}

async function ask() {
  asking?.abort();
  if (!wanted()) { draw(); return; }
  const own = asking = new AbortController();
  $("tokens").setAttribute("aria-busy", "true");
  try {
    for await (const event of stream("/api/words", { state }, own.signal)) {
      if (own !== asking) return;
      if (event.event === "words") { found = event; draw(); }
      if (event.event === "failed") throw new Error(event.reason);
    }
  } catch (error) {
    if (error.name !== "AbortError") trouble(error.message);
  }
  if (own === asking) $("tokens").removeAttribute("aria-busy");
}

export function words() {
  hint($("tokens-rows"));
  on("view", ask);
  on("answers", events => { if (events.some(one => one.event === "done")) ask(); });
  draw();
}
