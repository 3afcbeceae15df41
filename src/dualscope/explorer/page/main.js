// The page: every part is drawn once, and keeps itself up to date.
import { read } from "./address.js";
import { bars } from "./bars.js";
import { following } from "./following.js";
import { pinned } from "./pinned.js";
import { saying } from "./saying.js";
import { scenes } from "./scenes.js";
import { undone } from "./undone.js";
import { examples } from "./examples.js";
import { exits } from "./exits.js";
import { heads } from "./heads.js";
import { influence } from "./influence.js";
import { learners } from "./learners.js";
import { draw as drawLikeness, likeness } from "./likeness.js";
import { loading } from "./loading.js";
import { movements } from "./moved.js";
import { runs, trouble } from "./running.js";
import { scrub } from "./scrub.js";
import { setting } from "./setting.js";
import { sharing } from "./sharing.js";
import { adopt, readOnly, start } from "./store.js";
import { themed } from "./theme.js";
import { words } from "./words.js";

let unread = null;
document.documentElement.classList.toggle("read-only", readOnly);
try {
  const given = readOnly ? null : await read();
  if (given) adopt(given);
} catch (error) {
  unread = `The address holds no state that can be read (${error.message}); this is the first screen.`;
}
setting();
examples("demonstrations", start.most.demonstrations, "Demonstration");
examples("queries", start.most.queries, "Query");
loading();
learners();
movements(); // before the bars, which show it too
bars();
scrub();
influence();
likeness();
heads();
words();
exits();
saying();
scenes();
pinned();
following();
undone();
sharing();
themed(drawLikeness);
runs();
if (unread) trouble(unread);
document.documentElement.dataset.ready = "true";
