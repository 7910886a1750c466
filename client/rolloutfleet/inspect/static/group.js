/** A group's siblings: drawn by the server. */

import { follow, redraw, seldom } from "./live.js";
import { begin } from "./page.js";

const cards = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".sibling > h3 > a")]);

/** @param {number} step */
function move(step) {
  const all = cards();
  const now = all.findIndex((each) => each === document.activeElement);
  all[Math.max(0, Math.min(all.length - 1, now + step))]?.focus();
}

const changed = seldom(redraw, 2000);
const pause = follow({ changed, listed: changed });
begin([
  ["j ArrowRight", "next sibling (Enter opens it)", () => move(1)],
  ["k ArrowLeft", "sibling before", () => move(-1)],
  ["p", "pause and go on following", pause],
]);
