// What is on the screen, and who wants to know when it changes. Answers are kept beside it until others replace them.
export const start = JSON.parse(document.getElementById("start").textContent);

// A page that was made to be handed on shows one state: its answers are in it, and nothing can be asked.
export const readOnly = Boolean(start.recorded);

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
    if (events.some(one => (one.event === "failed" || one.event === "cancelled") && one.edition === edition)) waiting.splice(0).forEach(done => done());
    // An edit that was made meanwhile has not been answered yet.
    if (events.some(one => one.event === "done" && one.edition === edition)) {
      document.documentElement.dataset.settled = "true";
      waiting.splice(0).forEach(done => done());
    }
  }, DRAWN_EVERY);
}

// Resolved when what is on the screen has been answered whole.
const waiting = [];
export const settled = () => document.documentElement.dataset.settled ? Promise.resolve() : new Promise(done => waiting.push(done));

// What an answer is the answer to. Answers to the same texts can be compared when labels, rate and steps differ.
export const screen = () => {
  const { model, template, labels, separator, task, seed, rate, steps, demonstrations, queries } = state;
  const texts = JSON.stringify([model, template, labels, separator, task, seed, ...[demonstrations, queries].map(all => all.map(one => one.fields))]);
  return { texts, labels: demonstrations.map(one => one.label), rate, steps };
};

// Every edit can be taken back. What is typed or dragged without a pause is one edit.
const MOST_STEPS = 200, PAUSE = 700; // milliseconds
const past = [], future = [];
let last = { what: "", at: 0 };
export const steps = () => ({ back: past.length, forward: future.length });
function note(what, flows) {
  const now = performance.now(), goesOn = flows && what === last.what && now - last.at < PAUSE;
  last = { what, at: now };
  if (goesOn) return;
  past.push(state);
  if (past.length > MOST_STEPS) past.shift();
  future.length = 0;
}
function step(from, to) {
  if (readOnly || !from.length) return;
  to.push(state);
  state = from.pop();
  last = { what: "", at: 0 };
  edition += 1;
  say("state", { shape: true });
  say("view");
}
export const undo = () => step(past, future);
export const redo = () => step(future, past);

// A change of what is computed. `shape` says that lists have other entries and are drawn again.
export function change(patch, shape = true) {
  if (readOnly) return;
  note(Object.keys(patch).join(), !shape);
  state = { ...state, ...patch };
  edition += 1;
  say("state", { shape });
}
// The lists are drawn again; nothing else has changed.
export const redraw = () => say("state", { shape: true });
// A change of what is looked at: no number changes.
export function look(patch) {
  if (!readOnly) note("view", true);
  state = { ...state, view: { ...state.view, ...patch } };
  say("view");
}

// Every example keeps its texts under a template with other fields: a field that is new takes the text of the one whose place it has.
export function withTemplate(template) {
  const before = fieldsOf(state.template), after = fieldsOf(template);
  const kept = one => {
    const fields = { ...one.fields };
    after.forEach((name, i) => {
      const old = before[i];
      if (before.includes(name) || old === undefined || after.includes(old) || (fields[name] ?? "").trim()) return;
      fields[name] = fields[old] ?? "";
      delete fields[old];
    });
    return { ...one, fields };
  };
  return { template, demonstrations: state.demonstrations.map(kept), queries: state.queries.map(kept) };
}
// Whether a template can be used as it stands, and is not one that is being typed.
export const isWhole = template => fieldsOf(template).length > 0 && template.split("{").length === template.split("}").length;

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
