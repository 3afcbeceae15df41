// Requests to our own server: JSON in, JSON or lines of JSON out, with the token of this start.
import { start } from "./store.js";

const token = new URLSearchParams(location.search).get("token") ?? "";
const page = [...crypto.getRandomValues(new Uint8Array(12))].map(byte => byte.toString(16).padStart(2, "0")).join("");

async function ask(path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST", signal, credentials: "omit", cache: "no-store",
      headers: { "Content-Type": "application/json", "X-Dualscope-Token": token },
      body: JSON.stringify({ page, ...body }),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: is `dualscope explore` still running?");
  }
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw new Error(said.error ?? `The server answered ${response.status}.`);
  }
  return response;
}

export const post = async (path, body, signal) => (await ask(path, body, signal)).json();

// The events of a job, as they come; on a page that was handed on, as they came when it was made.
export async function* stream(path, body, signal) {
  if (start.recorded) { yield* start.recorded[path] ?? []; return; }
  const reader = (await ask(path, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
