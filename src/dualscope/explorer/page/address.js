// The state in the address bar: deflated, after the #, which browsers do not send to anybody.
export const MOST = 6000; // characters: what every browser and mail program carries

const through = async (bytes, transform) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(transform)).arrayBuffer());

export async function encode(state) {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(state)), new CompressionStream("deflate-raw"));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export async function decode(text) {
  if (text.length > MOST) throw new Error("too long");
  const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = await through(Uint8Array.from(plain, letter => letter.charCodeAt(0)), new DecompressionStream("deflate-raw"));
  return JSON.parse(new TextDecoder().decode(bytes));
}

// True where the address now has the whole state; too long a state leaves it empty rather than cut.
export async function write(state) {
  const text = await encode(state);
  const fits = text.length <= MOST;
  history.replaceState(null, "", location.pathname + location.search + (fits ? `#s=${text}` : ""));
  return fits;
}

export const read = () => location.hash.startsWith("#s=") ? decode(location.hash.slice(3)) : Promise.resolve(null);
