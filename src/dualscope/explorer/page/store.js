// What is on the screen, and who wants to know when it changes. Answers are kept beside it until others replace them.
export const start = JSON.parse(document.getElementById("start").textContent);

const listeners = { state: [], view: [], answers: [] };
export const on = (what, listener) => listeners[what].push(listener);
const say = (what, detail) => listeners[what].forEach(listener => listener(detail));

export let state = start.state;
export const answers = { learned: new Map(), refused: new Map(), controls: new Map(), withheld: new Map(), waiting: new Set(), lesson: null, band: null };

// Answers come in bursts; what they change is drawn together, a few times a second at most.
const DRAWN_EVERY = 30;
let heard = [], edition = 0;
export function told(event) {
  heard.push({ ...event, edition });
  if (heard.length > 1) return;
  setTimeout(() => {
    const events = heard;
    heard = [];
    say("answers", events);
    // An edit that was made meanwhile has not been answered yet.
    if (events.some(one => one.event === "done" && one.edition === edition)) document.documentElement.dataset.settled = "true";
  }, DRAWN_EVERY);
}

// What an answer is the answer to. Answers to the same texts can be compared when labels, rate and steps differ.
export const screen = () => {
  const { model, template, labels, separator, task, seed, rate, steps, demonstrations, queries } = state;
  const texts = JSON.stringify([model, template, labels, separator, task, seed, ...[demonstrations, queries].map(all => all.map(one => one.fields))]);
  return { texts, labels: demonstrations.map(one => one.label), rate, steps };
};

// A change of what is computed. `shape` says that lists have other entries and are drawn again.
export function change(patch, shape = true) {
  state = { ...state, ...patch };
  edition += 1;
  say("state", { shape });
}
// A change of what is looked at: no number changes.
export function look(patch) {
  state = { ...state, view: { ...state.view, ...patch } };
  say("view");
}

export const fieldsOf = template => [...new Set([...template.matchAll(/\{(\w+)\}/g)].map(found => found[1]))];
export const onScreen = () => ["zero-shot", "in-context", ...state.learners];
export const learner = name => start.learners.find(one => one.name === name) ?? { name, role: "", about: "", colour: "grey" };
export const query = () => Math.min(state.view.query, state.queries.length - 1);

const isText = value => typeof value === "string";
const areExamples = list => Array.isArray(list) && list.length > 0 && list.every(one =>
  one && typeof one.fields === "object" && one.fields !== null && Object.values(one.fields).every(isText) && Number.isInteger(one.label));

// A state from a file or the address is a stranger's: it is taken only if the page can show it; the server looks again.
export function adopt(given) {
  if (!given || given.version !== 1 || !isText(given.model) || !isText(given.template) || !Array.isArray(given.labels) ||
      given.labels.length < 2 || !given.labels.every(isText) || !areExamples(given.demonstrations) || !areExamples(given.queries))
    throw new Error("This is not a state that the explorer saved.");
  if (!start.models.includes(given.model)) throw new Error(`The model “${given.model}” was not given at the start.`);
  const known = new Set(start.learners.map(one => one.name));
  const learners = (Array.isArray(given.learners) ? given.learners : start.state.learners).filter(name => known.has(name));
  const task = start.tasks.some(one => one.name === given.task) ? given.task : null;
  const view = { ...start.state.view, ...given.view };
  const own = Object.fromEntries(Object.entries(given).filter(([key]) => key in start.state));
  const focus = learners.includes(given.focus) ? given.focus : learners[0] ?? start.state.focus;
  change({ ...start.state, ...own, learners, focus, task, view });
}
