/** Following a fleet: what it commits, as events; a page that isn't looked at asks for none. */

import { ROOT, refusal } from "./documents.js";
import { byId, failed } from "./dom.js";

/** @typedef {{ordinal: number, key: string, session_id: string, turn_id: string, parent_id: string | null}} Commit */
/** @typedef {{commit?: (said: Commit) => void, changed: () => void}} Follower `changed`: look at everything again */

/** Milliseconds between two looks at the same page. */
const APART = 1000;

/** @param {Follower} follower @returns {() => void} turns the pause on and off */
export function follow(follower) {
  const button = byId("live", HTMLButtonElement);
  if (!document.body.classList.contains("live")) return () => {};
  /** @type {EventSource | null} */
  let source = null;
  let paused = false;

  const show = () => {
    button.dataset.state = paused ? "paused" : source?.readyState === EventSource.OPEN ? "live" : "waiting";
    button.textContent = paused ? "paused" : source?.readyState === EventSource.OPEN ? "live" : "connecting";
    button.setAttribute("aria-pressed", String(paused));
  };
  const connect = () => {
    if (source || paused || document.hidden) return;
    source = new EventSource(new URL("events", ROOT));
    source.addEventListener("commit", (event) => follower.commit?.(JSON.parse(event.data)));
    for (const name of ["reset", "sessions"]) source.addEventListener(name, () => follower.changed());
    source.addEventListener("open", show);
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) again();
      show();
    });
    show();
  };
  const leave = () => {
    source?.close();
    source = null;
    show();
  };
  const again = () => {
    leave();
    setTimeout(connect, 3000);
  };
  const toggle = () => {
    paused = !paused;
    if (paused) leave();
    else resume();
    show();
  };
  const resume = () => {
    connect();
    follower.changed();
  };
  button.addEventListener("click", toggle);
  document.addEventListener("visibilitychange", () => (document.hidden ? leave() : !paused && resume()));
  addEventListener("pagehide", leave);
  connect();
  show();
  return toggle;
}

/**
 * The same at most once a second, and once more after the last call.
 * @param {() => void | Promise<void>} act
 */
export function seldom(act) {
  let waiting = false;
  let last = -APART;
  return () => {
    if (waiting) return;
    waiting = true;
    setTimeout(async () => {
      last = performance.now();
      waiting = false;
      try {
        await act();
      } catch (error) {
        failed(error);
      }
    }, Math.max(0, last + APART - performance.now()));
  };
}

/** The page's parts that the server drew, as they are now: those with `data-part`. */
export async function redraw() {
  const answer = await fetch(location.href.split("#")[0] ?? "");
  if (!answer.ok) throw new Error(await refusal(answer));
  // The server's own page, where all data is escaped; no script in it runs.
  const now = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-part]")) {
    const other = now.querySelector(`[data-part="${part.getAttribute("data-part")}"]`);
    if (other && !part.isEqualNode(other)) part.replaceChildren(...other.childNodes);
  }
}
