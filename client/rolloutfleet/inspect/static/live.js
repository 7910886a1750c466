/** Following a fleet: what it commits, as events; a page that isn't looked at asks for none. */

import { ROOT, refusal } from "./documents.js";
import { byId, failed } from "./dom.js";

/** @typedef {{ordinal: number, key: string, session_id: string, turn_id: string, parent_id: string | null}} Commit */
/**
 * `changed`: look at everything again; `listed`: the list of sessions is another, as after a reward.
 * @typedef {{commit?: (said: Commit) => void, changed: () => void, listed: () => void}} Follower
 */

/** @param {Follower} follower @returns {() => void} turns the pause on and off */
export function follow(follower) {
  const button = byId("live", HTMLButtonElement);
  if (!document.body.classList.contains("live")) return () => {};
  /** @type {EventSource | null} */
  let source = null;
  let paused = false;
  let missed = false;

  const show = () => {
    button.dataset.state = paused ? "paused" : source?.readyState === EventSource.OPEN ? "live" : "waiting";
    button.textContent = paused ? "paused" : source?.readyState === EventSource.OPEN ? "live" : "connecting";
    button.setAttribute("aria-pressed", String(paused));
  };
  const connect = () => {
    if (source || paused || document.hidden) return;
    source = new EventSource(new URL("events", ROOT));
    source.addEventListener("commit", (event) => follower.commit?.(JSON.parse(event.data)));
    source.addEventListener("reset", () => follower.changed());
    source.addEventListener("sessions", () => follower.listed());
    source.addEventListener("open", () => {
      if (missed) follower.changed();
      missed = false;
      show();
    });
    source.addEventListener("error", () => {
      missed = true;
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
 * The same, but not so often, one at a time, and once more after the last call.
 * @param {() => void | Promise<void>} act @param {number} [apart] milliseconds between two of them
 */
export function seldom(act, apart = 1000) {
  let asked = false;
  let busy = false;
  let last = -apart;
  const start = () => {
    busy = true;
    setTimeout(run, Math.max(0, last + apart - performance.now()));
  };
  const run = async () => {
    asked = false;
    try {
      await act();
    } catch (error) {
      failed(error);
    }
    last = performance.now();
    busy = false;
    if (asked) start();
  };
  return () => {
    asked = true;
    if (!busy) start();
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
