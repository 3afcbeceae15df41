// A label was flipped: how in-context learning's answers and the learners' moved, query by query.
import { moves } from "./alike.js";
import { $, fill, h } from "./dom.js";
import { hint } from "./hint.js";
import { tint } from "./heads.js";
import { answers, change, learner, on, onScreen, redraw, screen, state } from "./store.js";

const HARDLY = 0.005; // of a probability, on average over the queries
const UNIFORM = 1e-3; // mixed into probabilities, as the library's responses do
const DARKEST = 0.5; // a move of the right label's probability that has the whole colour

// The labels as they were when these texts were first answered, and every learner's probabilities by labels, rate and steps.
let base = null;

const key = (name, labels, asked) => JSON.stringify([name, labels, ...learner(name).rate ? [asked.rate, asked.steps] : []]);
const same = (one, other) => one.length === other.length && one.every((value, i) => value === other[i]);

function remember(events) {
  for (const { event, control, learner: name, asked, probabilities } of events) {
    if (event !== "learned" || control) continue;
    if (base?.texts !== asked.texts) base = { texts: asked.texts, labels: asked.labels, known: new Map() };
    base.known.set(key(name, asked.labels, asked), probabilities);
  }
}

// A learner's probabilities before and after; null where labels are as they were, or either is not known.
export function moved(name, here = screen()) {
  const now = answers.learned.get(name);
  if (!now || base?.texts !== here.texts || same(base.labels, here.labels)) return null;
  if (now.asked.texts !== here.texts || !same(now.asked.labels, here.labels)) return null;
  const was = base.known.get(key(name, base.labels, now.asked));
  return was ? { was, now: now.probabilities } : null;
}

const shift = ({ was, now }, query, label) =>
  was[query]?.[label] == null || now[query]?.[label] == null ? null : now[query][label] - was[query][label];
const points = value => value === null ? "–" : Math.abs(value) < 0.0005 ? "0.0" : `${value > 0 ? "+" : "−"}${(100 * Math.abs(value)).toFixed(1)}`;

// The change of the answers as the library's responses have it: log-probabilities, mixed with a little of the uniform, centred.
function response({ was, now }) {
  const vector = shares => {
    const logs = shares.map(share => Math.log((1 - UNIFORM) * share + UNIFORM / shares.length));
    const mean = logs.reduce((sum, one) => sum + one, 0) / logs.length;
    return logs.map(one => one - mean);
  };
  return now.flatMap((shares, query) => {
    if ([...shares, ...was[query]].includes(null)) return shares.map(() => 0); // a probability that is no number says nothing
    const before = vector(was[query]);
    return vector(shares).map((one, i) => one - before[i]);
  });
}

function correlation(one, other) {
  const sum = (a, b) => a.reduce((total, value, i) => total + value * b[i], 0);
  return sum(one, other) / Math.sqrt(sum(one, one) * sum(other, other));
}

const size = both => {
  const found = state.queries.map((query, i) => shift(both, i, query.label)).filter(value => value !== null);
  return found.reduce((sum, value) => sum + Math.abs(value), 0) / found.length;
};

function sentence(icl, own) {
  if (!icl || answers.waiting.has("in-context")) return "In-context learning has not answered yet.";
  if (size(icl) < HARDLY) return "In-context learning's answers hardly move: here the labels that changed do not matter to it, so there is nothing to compare.";
  if (answers.refused.has(state.focus)) return `${state.focus} has no answer to compare.`;
  if (answers.waiting.has(state.focus)) return `${state.focus} has not answered yet.`;
  if (!own) return `How ${state.focus} answered with the labels as they were is not known at this rate and step: put them back to see.`;
  if (size(own) < HARDLY) return `In-context learning's answers move; ${state.focus}'s hardly do.`;
  return `When the labels change so, ${moves(state.focus, correlation(response(icl), response(own)), "1 is the same way, 0 unrelated, and -1 the opposite way")}`;
}

// How the learner in focus moved beside in-context learning; empty where the labels are as they were.
export function movedSentence() {
  const here = screen();
  if (base === null || base.texts !== here.texts || same(base.labels, here.labels)) return "";
  return sentence(moved("in-context", here), moved(state.focus, here));
}
// What changed labels did to in-context learning: points of the right answers' probability, and changed answers.
export function flipped(name) {
  const both = moved(name);
  if (!both) return null;
  const said = shares => shares.map(row => row.indexOf(Math.max(...row)));
  const before = said(both.was), after = said(both.now);
  return { points: size(both), changed: after.filter((one, i) => one !== before[i]).length };
}
export function correlationOf(name) {
  const [icl, own] = [moved("in-context"), moved(name)];
  return icl && own ? correlation(response(icl), response(own)) : null;
}
export const compareFromHere = () => { if (base) base = { ...base, labels: screen().labels }; };

function flips(labels) {
  const all = base.labels.map((label, i) => labels[i] === label ? null : `${i + 1} (${state.labels[label]} → ${state.labels[labels[i]]})`).filter(Boolean);
  return `Changed: demonstration${all.length > 1 ? "s" : ""} ${all.join(", ")}.`;
}

function cell(name, both, query) {
  if (!both) return h("td", { class: "n" }, "–");
  const value = shift(both, query, state.queries[query].label);
  const words = state.labels.map((word, i) => `${word} ${(100 * both.was[query]?.[i]).toFixed(1)} % → ${(100 * both.now[query]?.[i]).toFixed(1)} %`);
  return h("td", { class: "n", "data-learner": name, "data-moved": value, style: { background: tint(value === null ? null : value / DARKEST) },
    "data-hint": `${name}, query ${query + 1}\n${words.join("\n")}` }, points(value));
}

export const spoken = one => state.template.replace(/\{(\w+)\}/g, (_, name) => one.fields[name] ?? "");

function draw() {
  const here = screen(), shown = base !== null && base.texts === here.texts && !same(base.labels, here.labels);
  $("moved").hidden = !shown;
  if (!shown) return;
  const names = onScreen().filter(name => name !== "zero-shot"), found = new Map(names.map(name => [name, moved(name, here)]));
  $("moved-flips").textContent = flips(here.labels);
  const said = sentence(found.get("in-context"), found.get(state.focus) ?? moved(state.focus, here));
  if ($("moved-sentence").textContent !== said) $("moved-sentence").textContent = said;
  fill($("moved-table"), h("table", { class: "grid" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "query"), h("th", { scope: "col" }, "right answer"),
      names.map(name => h("th", { scope: "col", class: "n", style: { "box-shadow": `inset 0 -2px var(--${learner(name).colour})` } }, name)))),
    h("tbody", {}, state.queries.map((query, i) => h("tr", {},
      h("th", { scope: "row", "data-hint": spoken(query) }, String(i + 1)), h("td", { class: `l${query.label % 6} answer` }, state.labels[query.label] ?? "?"),
      names.map(name => cell(name, found.get(name), i)))))));
  $("moved-table").classList.toggle("waiting", names.some(name => answers.waiting.has(name)));
}

export function movements() {
  hint($("moved-table"));
  $("put-back").addEventListener("click", () => change({ demonstrations: state.demonstrations.map((one, i) => ({ ...one, label: base.labels[i] })) }));
  $("from-here").addEventListener("click", () => { compareFromHere(); redraw(); });
  on("answers", events => { remember(events); draw(); });
  on("view", draw);
  on("state", draw);
  draw();
}
