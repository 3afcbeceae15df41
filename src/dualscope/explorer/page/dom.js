// Elements from plain data. Text is always a text node: nothing that was typed can become markup.
export const $ = id => document.getElementById(id);

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const fill = (element, ...children) => element.replaceChildren(...children.flat().filter(Boolean));

// A number for people: .52, -.03, 1.
export const few = (value, digits = 2) =>
  value === null || value === undefined ? "–" : value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace(/^(-?)0\./, "$1.");

// Work after a quiet moment, so that typing does not compute every letter.
export function debounced(work, wait) {
  let timer;
  return (quiet = wait) => { clearTimeout(timer); timer = setTimeout(work, quiet); };
}
