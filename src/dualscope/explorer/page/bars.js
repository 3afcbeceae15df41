// What each learner answers: a card a learner, a bar a label.
import { $, fill, h } from "./dom.js";
import { moved } from "./moved.js";
import { answers, fieldsOf, learner, on, onScreen, query, state } from "./store.js";

const percent = share => share === null ? "–" : `${(100 * share).toFixed(share > 0.9995 || share < 0.0005 ? 0 : 1)} %`;

function bar(word, i, answer, right, before) {
  const share = answer?.probabilities[query()]?.[i] ?? null;
  const said = answer?.predictions[query()] === i;
  const logprob = answer?.logprobs[query()]?.[i];
  const was = before?.[query()]?.[i] ?? null;
  return h("div", { class: `bar${said ? " said" : ""}`, "data-share": share, title: logprob === undefined ? undefined : `mean log-probability of its tokens: ${logprob?.toFixed(4)}` },
    h("span", { class: "name", title: word }, h("span", { class: "word-of" }, word), right && h("span", { class: "tick", title: "the right answer" }, "✓")),
    h("span", { class: "track" }, h("span", { class: "fill", style: { width: `${100 * (share ?? 0)}%` } }),
      was !== null && h("span", { class: "was", style: { left: `${100 * was}%` }, title: `with the labels as they were: ${percent(was)}` })),
    h("span", { class: "share" }, percent(share)));
}

function card(name) {
  const about = learner(name), answer = answers.learned.get(name), refused = answers.refused.get(name);
  const right = answer?.predictions.filter((said, i) => said === state.queries[i]?.label).length;
  const gold = state.queries[query()]?.label, before = name === "zero-shot" ? null : moved(name)?.was;
  return h("article", {
    class: `learner${answers.waiting.has(name) ? " waiting" : ""}`, "data-learner": name, style: { "--own": `var(--${about.colour})` },
    "aria-label": name, "aria-busy": String(answers.waiting.has(name)),
  },
    h("h3", { title: about.about }, name, h("small", {}, about.role)),
    refused ? h("p", { class: "refused" }, refused) : state.labels.map((word, i) => bar(word, i, answer, i === gold, before)),
    answer && !refused && h("p", { class: "small" }, `${right} of ${answer.predictions.length} queries right · ${answer.seconds.toFixed(2)} s`),
    answer?.chosen && !refused && h("p", { class: "small chosen" }, answer.chosen));
}

export function bars() {
  const draw = () => {
    const asked = state.queries[query()];
    $("asked").textContent = asked ? state.template.replace(/\{(\w+)\}/g, (_, name) => asked.fields[name] ?? "") : "";
    fill($("bars"), onScreen().map(card));
    const lesson = answers.lesson;
    fill($("notes"), lesson && [`${lesson.shots_used} demonstrations, ${lesson.tokens} tokens of context.`, ...lesson.notes].map(note => h("span", {}, note, " ")));
  };
  on("answers", draw);
  on("view", draw);
  on("state", draw);
  draw();
}
