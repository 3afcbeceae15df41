// On a phone the answers follow the demonstration that was edited: there they would be far below.
import { $, fill, h } from "./dom.js";
import { answers, learner, on, onScreen, query, state } from "./store.js";

const narrow = matchMedia("(max-width: 979px)");
let at = null; // the demonstration that was edited last

function card(name) {
  const answer = answers.learned.get(name), said = answer?.predictions[query()];
  const share = answer?.probabilities[query()]?.[said], isRight = said === state.queries[query()]?.label;
  return h("span", { class: `follows${answers.waiting.has(name) ? " waiting" : ""}`, "data-follows": name, style: { "--own": `var(--${learner(name).colour})` } },
    h("b", {}, name), " ", said === undefined ? "…" : `${state.labels[said]} ${Math.round(100 * (share ?? 0))} %`, isRight && h("span", { class: "tick" }, " ✓"));
}

export function following() {
  const note = h("div", { id: "following", "aria-live": "polite", role: "status" });
  const draw = () => {
    const item = at === null || !narrow.matches ? null : $("demonstrations").children[at];
    if (!item) { note.remove(); return; }
    fill(note, `Query ${query() + 1}: `, onScreen().map(card));
    if (note.parentElement !== item) item.append(note);
  };
  const edited = event => {
    const item = event.target.closest("#demonstrations li");
    if (item && !event.target.closest(".grip")) { at = [...$("demonstrations").children].indexOf(item); queueMicrotask(draw); }
  };
  $("demonstrations").addEventListener("input", edited, true);
  $("demonstrations").addEventListener("click", edited, true);
  narrow.addEventListener("change", draw);
  for (const what of ["answers", "state", "view"]) on(what, draw);
}
