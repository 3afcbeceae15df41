// Query by query: a list that draws only the rows in view, so that ten thousand queries scroll as ten do.
(() => {
  const box = document.getElementById("browser");
  if (!box) return;
  const { sets, texts } = JSON.parse(document.getElementById("queries-data").textContent);
  const HEIGHT = 34;
  const choice = name => box.querySelector(`[data-choose="${name}"]`);
  const [list, room, rows, one, count] = [".list", ".room", ".rows", ".one", "output"].map(name => box.querySelector(name));
  const made = (tag, text = "", name = "") => Object.assign(document.createElement(tag), { textContent: text, className: name });
  const option = (text, value) => Object.assign(made("option", text), { value });
  const several = new Set(sets.map(set => set.model)).size > 1;
  choice("set").append(...sets.map((set, i) => option(`${several ? set.model + " · " : ""}${set.task}, seed ${set.seed}`, i)));

  let set, icl, own, zero, kept = [], chosen = -1;
  const named = (set, name) => set.learners.find(learner => learner.name === name);
  const text = i => texts[set.texts][i] || set.ids[i];
  const word = k => set.labels[k] ?? `class ${k}`;
  const RULES = {
    all: () => true,
    disagree: i => icl.prediction[i] !== own.prediction[i],
    icl: i => icl.prediction[i] === set.gold[i] && own.prediction[i] !== set.gold[i],
    own: i => own.prediction[i] === set.gold[i] && icl.prediction[i] !== set.gold[i],
    wrong: i => own.prediction[i] !== set.gold[i] && icl.prediction[i] !== set.gold[i],
    changed: i => zero && (icl.prediction[i] !== zero.prediction[i] || own.prediction[i] !== zero.prediction[i]),
  };

  const chooseSet = () => {
    set = sets[Number(choice("set").value)];
    const before = choice("learner").value;
    const others = set.learners.filter(learner => !["in-context", "zero-shot"].includes(learner.name));
    choice("learner").replaceChildren(...(others.length ? others : set.learners).map(learner => option(learner.name, learner.name)));
    if (named(set, before)) choice("learner").value = before;
    filter();
  };
  const filter = () => {
    [icl, own, zero] = [named(set, "in-context"), named(set, choice("learner").value), named(set, "zero-shot")];
    box.querySelector("[data-head=own]").textContent = own.name;
    const rule = RULES[choice("show").value];
    const wanted = choice("text").value.toLocaleLowerCase();
    kept = [];
    for (let i = 0; i < set.gold.length; i++)
      if (rule(i) && (!wanted || text(i).toLocaleLowerCase().includes(wanted))) kept.push(i);
    count.textContent = `${kept.length} of ${set.gold.length} queries`;
    room.style.height = kept.length * HEIGHT + "px";
    list.scrollTop = 0;
    chosen = -1;
    one.replaceChildren();
    show();
  };

  const answer = (learner, i) => made("span", word(learner.prediction[i]), learner.prediction[i] === set.gold[i] ? "right" : "wrong");
  const row = i => {
    const found = made("div", "", "row");
    found.setAttribute("role", "option");
    found.setAttribute("aria-selected", String(i === chosen));
    found.dataset.query = i;
    found.append(made("span", text(i).replace(/\s+/g, " "), "text"), made("small", word(set.gold[i]), "gold"), answer(icl, i), answer(own, i));
    return found;
  };
  const show = () => {
    const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - 4);
    const last = Math.min(kept.length, first + Math.ceil(list.clientHeight / HEIGHT) + 8);
    rows.style.top = first * HEIGHT + "px";
    rows.replaceChildren(...kept.slice(first, last).map(row));
  };
  const open = i => {
    chosen = i;
    const table = made("table");
    const head = made("tr");
    head.append(made("th", "learner"), made("th", "says"), ...set.labels.map(label => made("th", label)));
    table.append(head);
    for (const learner of set.learners) {
      const line = made("tr"), said = made("td");
      said.append(answer(learner, i));
      line.append(made("td", learner.name), said);
      set.labels.forEach((_, k) => {
        const chance = learner.chances[i * set.labels.length + k];
        const cell = made("td"), bar = made("span", "", "chance");
        bar.style.width = (chance ?? 0) / 1000 * 4 + "rem";
        cell.append(bar, chance === undefined ? "–" : ` ${(chance / 1000).toFixed(2)}`);
        line.append(cell);
      });
      table.append(line);
    }
    const scroll = made("div", "", "scroll");
    scroll.append(table);
    one.replaceChildren(made("pre", text(i)), made("p", `${set.ids[i]} · right: ${word(set.gold[i])}`, "small"), scroll);
    show();
  };
  const move = by => {
    const at = Math.min(kept.length - 1, Math.max(0, kept.indexOf(chosen) + by));
    if (!kept.length) return;
    const top = at * HEIGHT;
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + HEIGHT - list.clientHeight;
    open(kept[at]);
  };

  list.addEventListener("scroll", () => requestAnimationFrame(show), { passive: true });
  list.addEventListener("keydown", event => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) { event.preventDefault(); move(by); }
  });
  rows.addEventListener("click", event => {
    const pressed = event.target.closest("[data-query]");
    if (pressed) open(Number(pressed.dataset.query));
  });
  choice("set").addEventListener("change", chooseSet);
  for (const name of ["learner", "show"]) choice(name).addEventListener("change", filter);
  choice("text").addEventListener("input", filter);
  chooseSet();
})();
