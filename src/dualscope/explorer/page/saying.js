// One sentence about what is on the screen, always up to date.
import { movedSentence } from "./moved.js";
import { $, few } from "./dom.js";
import { answers, on, state } from "./store.js";

const CALLED = {
  "untrained": "the untrained model", "mismatched": "its change for another query", "random-update": "a random update of its size",
  "position": "moving the query to its position in the context", "dilution": "taking attention from the query", "null-context itself": "the context without its labels",
  "random-labels": "random labels",
};
export const called = name => CALLED[name] ?? name;
export const right = answer => answer.predictions.filter((said, i) => said === state.queries[i]?.label).length;
export const mean = answer => answer?.likeness.sim_aou?.mean ?? null;

// The control of the highest likeness, of those that decide; null where none has answered.
export function strongest() {
  const known = [...answers.controls].filter(([, one]) => !one.teaches && mean(one) !== null);
  return known.sort(([, one], [, other]) => mean(other) - mean(one))[0] ?? null;
}

export function likenessSentence() {
  const own = mean(answers.learned.get(state.focus)), top = strongest();
  if (own === null || !top) return "";
  const [name, control] = top;
  return own > mean(control)
    ? `${state.focus} changes the attention's outputs ${few(own)} as the context does, above every control on this screen (${called(name)}, ${few(mean(control))}); a study over seeds decides.`
    : `${state.focus} changes the attention's outputs ${few(own)} as the context does, not above its controls (${called(name)}, with nothing to learn from: ${few(mean(control))}).`;
}

function sentence() {
  const icl = answers.learned.get("in-context"), own = answers.learned.get(state.focus), zero = answers.learned.get("zero-shot");
  if (!icl || !zero) return "";
  const moved = movedSentence();
  if (moved) return moved;
  const n = icl.predictions.length;
  const counts = `In-context learning answers ${right(icl)} of ${n} queries right${own ? `, ${state.focus} ${right(own)}` : ""}, and the model without demonstrations ${right(zero)}`;
  const alike = likenessSentence();
  return alike ? `${counts}; ${alike}` : `${counts}.`;
}

export function saying() {
  const draw = () => {
    const waits = answers.waiting.size > 0 || !document.documentElement.dataset.settled && answers.band === null;
    const said = sentence();
    if (said && $("saying").textContent !== said) $("saying").textContent = said;
    $("saying").classList.toggle("waiting", waits);
  };
  on("answers", draw);
  on("view", draw);
  draw();
}
