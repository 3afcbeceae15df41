// The page: every part is drawn once, and keeps itself up to date.
import { read } from "./address.js";
import { bars } from "./bars.js";
import { examples } from "./examples.js";
import { runs, trouble } from "./running.js";
import { setting } from "./setting.js";
import { adopt, start } from "./store.js";
import { themed } from "./theme.js";

let unread = null;
try {
  const given = await read();
  if (given) adopt(given);
} catch (error) {
  unread = `The address holds no state that can be read (${error.message}); this is the first screen.`;
}
setting();
examples("demonstrations", start.most.demonstrations, "Demonstration");
examples("queries", start.most.queries, "Query");
bars();
themed(() => {});
runs();
if (unread) trouble(unread);
document.documentElement.dataset.ready = "true";
