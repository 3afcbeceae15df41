// How alike two learners move, in the words of the verdict. One screen shows; it takes a study to judge.
import { few } from "./dom.js";
import { start } from "./store.js";

// Of the number as it is printed: .75 has one word, whatever its third digit is.
const kind = exact => {
  const r = Number(exact.toFixed(2));
  return r >= 0.75 ? "alike" : r >= 0.25 ? "partly alike" : r > -0.25 ? "different" : "opposite";
};

// "gd's answers move partly as in-context learning's do: .52, where ..."
export const moves = (name, r, scale) => `${name}'s answers ${start.moves[kind(r)]}: ${few(r)}, where ${scale}.`;
