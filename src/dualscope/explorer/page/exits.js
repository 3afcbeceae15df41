// What the model would answer after every layer, a row a learner.
import { $, fill, h } from "./dom.js";
import { answers, learner, on, onScreen, query, state } from "./store.js";

function cell(shares, name, layer) {
  const share = Math.max(...shares), said = shares.indexOf(share), chance = 1 / shares.length;
  const sure = Math.max(0, (share - chance) / (1 - chance));
  return h("td", { class: `l${said % 6}`, style: { "--w": sure }, title: `${name}, after layer ${layer}: ${state.labels.map((word, i) => `${word} ${(100 * shares[i]).toFixed(1)} %`).join(", ")}` },
    state.labels[said] ?? "");
}

export function exits() {
  const draw = () => {
    const rows = onScreen().filter(name => answers.learned.get(name)?.exits?.[query()]);
    const layers = Math.max(0, ...rows.map(name => answers.learned.get(name).exits[query()].length));
    fill($("exits-table"), h("table", { class: "exits" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "after layer"), Array.from({ length: layers }, (_, layer) => h("th", { scope: "col" }, String(layer))))),
      h("tbody", {}, rows.map(name => h("tr", { class: answers.waiting.has(name) ? "waiting" : "", "data-learner": name },
        h("th", { scope: "row", style: { "box-shadow": `inset 3px 0 var(--${learner(name).colour})`, "padding-left": ".6rem" } }, name),
        answers.learned.get(name).exits[query()].map((shares, layer) => shares.includes(null) ? h("td", {}, "–") : cell(shares, name, layer)))))));
  };
  on("answers", draw);
  on("view", draw);
  on("state", draw);
  draw();
}
