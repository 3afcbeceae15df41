"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const hiddenTasks = new Set();
  const drawn = new Set();

  const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // Points of tasks that the reader has switched off leave the traces that name their points' tasks.
  const KEPT = ["x", "y", "ids", "text", "customdata"];
  const filtered = trace => {
    if (!trace.ids || !hiddenTasks.size) return trace;
    const keep = trace.ids.map(id => !hiddenTasks.has(id));
    const some = list => Array.isArray(list) ? list.filter((_, i) => keep[i]) : list;
    const result = { ...trace };
    for (const key of KEPT) if (Array.isArray(trace[key])) result[key] = some(trace[key]);
    for (const key of ["error_x", "error_y"]) if (trace[key])
      result[key] = { ...trace[key], array: some(trace[key].array), arrayminus: some(trace[key].arrayminus) };
    return result;
  };

  const laidOut = spec => {
    const categories = spec.layout.yaxis?.categoryarray;
    if (!categories || !spec.byTask || !hiddenTasks.size) return spec.layout;
    return { ...spec.layout, yaxis: { ...spec.layout.yaxis, categoryarray: categories.filter(c => !hiddenTasks.has(c)) } };
  };
  // A sheet is narrower than a screen, and a chart is drawn before the browser lays the sheet out.
  const SHEET = 680; // pixels: A4 less its margins
  let onPaper = false;
  const paperWidth = box => (box.closest(".panels:not(.single)") ? (SHEET - 28) / 2 : SHEET);
  const draw = box => {
    const spec = plots[box.dataset.plot];
    const off = new Set(all('[data-series][aria-pressed="false"]', box.closest("figure")).map(key => escaped(key.dataset.series)));
    drawn.add(box);
    const layout = onPaper ? { ...laidOut(spec), width: paperWidth(box) } : laidOut(spec);
    Plots.draw(box, spec.data.filter(trace => !off.has(trace.name)).map(filtered), layout, spec.ends);
  };
  const redraw = () => drawn.forEach(draw);

  // A chart is drawn when it comes near the screen.
  const boxes = all(".plot");
  const watcher = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { watcher.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "300px" });
  boxes.forEach(box => watcher.observe(box));

  // Light and dark: the system's, until the reader says otherwise.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
  const tell = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; tell(); redraw(); });
  dark.addEventListener("change", () => { tell(); redraw(); });
  tell();

  // Tabs, with the arrow keys.
  for (const list of all('[role="tablist"]')) {
    const tabs = all('[role="tab"]', list);
    const choose = (tab, focus) => {
      for (const other of tabs) {
        const on = other === tab;
        other.setAttribute("aria-selected", String(on));
        other.tabIndex = on ? 0 : -1;
        document.getElementById(other.getAttribute("aria-controls")).hidden = !on;
      }
      if (focus) tab.focus();
    };
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => choose(tab, false));
      tab.addEventListener("keydown", event => {
        const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (to !== undefined) { event.preventDefault(); choose(tabs[(to + tabs.length) % tabs.length], true); }
      });
    });
  }

  // Tasks that are switched off go from charts and tables alike; one always stays.
  const filter = document.getElementById("tasks");
  const off = () => new Set(filter ? all("input", filter).filter(input => !input.checked).map(input => input.value) : []);
  const hide = (from = document) => {
    const tasks = off();
    for (const thing of all("[data-task]", from)) thing.hidden = tasks.has(thing.dataset.task);
  };
  if (filter) filter.addEventListener("change", event => {
    if (!all("input", filter).some(input => input.checked)) event.target.checked = true;
    hiddenTasks.clear();
    off().forEach(task => hiddenTasks.add(escaped(task)));
    hide();
    redraw();
  });

  // Long tables wait as text until they are asked for, so that the page opens at once.
  for (const details of all("details")) details.addEventListener("toggle", () => {
    const waiting = details.querySelector('script[type="text/html"]');
    if (!waiting) return;
    const holder = document.createElement("div");
    holder.innerHTML = waiting.textContent;
    waiting.replaceWith(...holder.childNodes);
    hide(details);
  });

  // A press on a legend's entry takes its series out of the figure, or puts it back.
  for (const key of all("[data-series]")) key.addEventListener("click", () => {
    key.setAttribute("aria-pressed", String(key.getAttribute("aria-pressed") === "false"));
    all(".plot", key.closest("figure")).filter(box => drawn.has(box)).forEach(draw);
  });

  // CSV from the table itself, with nine digits; text that a spreadsheet would compute is quoted.
  const field = text => {
    const safe = /^[=+@\t\r-]/.test(text) && Number.isNaN(Number(text)) ? "'" + text : text;
    return /[",\n]/.test(safe) ? '"' + safe.replace(/"/g, '""') + '"' : safe;
  };
  const toCSV = table => {
    const heads = all("thead th", table);
    const wide = heads.map(head => head.hasAttribute("data-interval"));
    const lines = [heads.flatMap((head, i) => wide[i] ? [head.textContent, head.textContent + " low", head.textContent + " high"] : [head.textContent])];
    for (const row of all("tbody tr", table)) lines.push([...row.cells].flatMap((cell, i) => {
      const value = cell.dataset.v ?? cell.textContent;
      return wide[i] ? [value, cell.dataset.low ?? "", cell.dataset.high ?? ""] : [value];
    }));
    return lines.map(line => line.map(field).join(",")).join("\r\n") + "\r\n";
  };
  document.addEventListener("click", event => {
    const pressed = event.target.closest("[data-csv]");
    if (!pressed) return;
    const url = URL.createObjectURL(new Blob([toCSV(pressed.previousElementSibling.querySelector("table"))], { type: "text/csv" }));
    const link = Object.assign(document.createElement("a"), { href: url, download: pressed.dataset.csv.replace(/[^\w.-]+/g, "-") + ".csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  });

  // A chart by itself, with its legend and its title, for a talk or a mail.
  const file = text => text.replace(/[^\p{L}\p{N}_.-]+/gu, "-").replace(/^-+|-+$/g, "");
  document.addEventListener("click", async event => {
    const pressed = event.target.closest("[data-save]");
    if (!pressed) return;
    const box = pressed.closest(".panel").querySelector(".plot");
    if (!drawn.has(box)) draw(box);
    const format = pressed.dataset.save;
    const head = [box.closest("figure").querySelector("h3").textContent, box.parentElement.querySelector("h4")?.textContent];
    const picture = Plots.picture(box, escaped(head.filter(Boolean).join(": ")));
    const url = await Plotly.toImage(picture, { format, width: 900, height: box.clientHeight + 120, scale: 2 });
    const name = file(pressed.dataset.name) + "." + format;
    Object.assign(document.createElement("a"), { href: url, download: name }).click();
  });

  // What is folded opens when it is pointed to.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const inside = target.matches("section") ? target.querySelector("details.folded") : target.closest("details");
    for (let one = inside; one; one = one.parentElement?.closest("details")) one.open = true;
    if (inside) target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();

  // Where the reader is.
  const links = new Map(all(".top nav a").map(link => [link.hash.slice(1), link]));
  const spy = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) {
      links.forEach(link => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true"); // above the first section: none
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  all("main section, main .title").forEach(part => spy.observe(part));

  // On paper: every chart of what is shown, in light.
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    onPaper = true;
    boxes.filter(box => box.offsetParent !== null).forEach(draw);
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    onPaper = false;
    redraw();
  });
  root.dataset.ready = "true";
})();
