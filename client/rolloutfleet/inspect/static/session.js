/** One session: its tree, and a branch of it as conversation, as tokens, or as times. What is shown is in the address. */

import { Conversation } from "./conversation.js";
import { readTree } from "./documents.js";
import { byId, failed } from "./dom.js";
import { follow, redraw, seldom } from "./live.js";
import { begin } from "./page.js";
import { Strip } from "./strip.js";
import { MODES, TokenView, legend } from "./tokens.js";
import { tooltips } from "./tooltip.js";
import { newestBelow, path } from "./turns.js";
import { Waterfall } from "./waterfall.js";

/** @typedef {import("./documents.js").Tree} Tree */
/** @typedef {import("./documents.js").TreeTurn} TreeTurn */

const VIEWS = ["conversation", "tokens", "timing"];
const key = document.body.dataset.key ?? "";
const scroller = byId("scroller", HTMLElement);
const treePlace = byId("tree", HTMLElement);
const tokenPlace = byId("tokens", HTMLElement);
const find = byId("find", HTMLInputElement);
const trouble = byId("trouble", HTMLElement);

const conversation = new Conversation(byId("conversation", HTMLElement), scroller, key);
const tokens = new TokenView(tokenPlace, scroller, key, showLegend);
const waterfall = new Waterfall(byId("waterfall", HTMLElement), byId("phases", HTMLElement), byId("by-clock", HTMLInputElement));
const strip = new Strip(byId("strip", HTMLCanvasElement), key, (turn, token) => {
  tokens.section(turn.turn_id, token)?.scrollIntoView({ block: "start" });
});

/** @type {Tree | null} */
let tree = null;
/** @type {TreeTurn[]} */
let shownPath = [];
let shownTurn = "";

/** @param {string} name @param {string} [other] */
const asked = (name, other = "") => new URLSearchParams(location.hash.slice(1)).get(name) ?? other;
const view = () => (VIEWS.includes(asked("view")) ? asked("view") : "conversation");
const mode = () => MODES.find((each) => each === asked("by")) ?? "logprob";

/** @param {Record<string, string | null>} changes */
function ask(changes) {
  const now = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries(changes)) {
    if (value) now.set(name, value);
    else now.delete(name);
  }
  history.replaceState(null, "", `#${now}`);
  show();
}

/** The last turn of the branch that is asked for, or else has the turn that is, or else is the newest. @param {Tree} of */
function lastTurn(of) {
  const turn = asked("turn");
  const branch = asked("branch");
  if (of.turns.some((each) => each.turn_id === branch)) return branch;
  const last = shownPath.at(-1)?.turn_id ?? "";
  if (shownPath.some((each) => each.turn_id === turn) && of.branches.includes(last)) return last;
  return newestBelow(of.turns, turn) ?? newestBelow(of.turns, null) ?? "";
}

/** Everything as the address and the tree say. */
function show() {
  if (!tree) return;
  const now = view();
  for (const each of VIEWS) {
    byId(`tab-${each}`, HTMLAnchorElement).setAttribute("aria-selected", String(each === now));
    byId(`view-${each}`, HTMLElement).hidden = each !== now;
  }
  const atEnd = scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 80;
  const before = shownPath.at(-1)?.turn_id;
  shownPath = path(tree.turns, lastTurn(tree));
  const turns = new Set(shownPath.map((turn) => turn.turn_id));
  if (now === "conversation") conversation.show(shownPath);
  if (now === "tokens") showTokens();
  if (now === "timing") waterfall.show(tree.turns, turns);
  mark(turns);
  const grown = before !== undefined && before !== shownPath.at(-1)?.turn_id && turns.has(before);
  if (asked("turn") !== shownTurn) goTo(asked("turn"));
  else if (grown && atEnd) scroller.scrollTop = scroller.scrollHeight;
}

function showTokens() {
  tokenPlace.className = `by-${mode()}`;
  byId("by", HTMLSelectElement).value = mode();
  showLegend();
  tokens.show(shownPath);
  strip.show(shownPath).catch(failed);
  setTimeout(markView, 500);
}

function showLegend() {
  const place = byId("legend", HTMLElement);
  place.className = `by-${mode()}`;
  place.replaceChildren(...legend(mode(), tokens.versions));
}

/** In the tree: the branch, and the turn that is asked for. @param {Set<string>} turns */
function mark(turns) {
  for (const line of treePlace.querySelectorAll("[data-turn]")) {
    const turn = line.getAttribute("data-turn") ?? "";
    line.classList.toggle("on-branch", turns.has(turn));
    line.classList.toggle("selected", turn === asked("turn"));
  }
}

/** @param {string} turn */
function goTo(turn) {
  shownTurn = turn;
  if (!turn) return;
  const section = view() === "tokens" ? tokens.section(turn) : conversation.section(turn);
  section?.scrollIntoView({ block: "start" });
  treePlace.querySelector(`[data-turn="${CSS.escape(turn)}"]`)?.scrollIntoView({ block: "nearest" });
}

/** @param {number} step along the branch */
function move(step) {
  const now = shownPath.findIndex((turn) => turn.turn_id === asked("turn"));
  const next = shownPath[now < 0 ? (step > 0 ? 0 : shownPath.length - 1) : Math.max(0, Math.min(shownPath.length - 1, now + step))];
  if (next) ask({ turn: next.turn_id });
}

/** @param {number} step */
function turnTo(step) {
  if (!tree?.branches.length) return;
  const now = tree.branches.indexOf(shownPath.at(-1)?.turn_id ?? "");
  const branch = tree.branches[(now + step + tree.branches.length) % tree.branches.length] ?? "";
  ask({ branch, turn: branch });
}

/** The tree's lines that have a text. */
function search() {
  const text = find.value.trim().toLowerCase();
  for (const line of /** @type {NodeListOf<HTMLElement>} */ (treePlace.querySelectorAll("[data-turn]"))) {
    line.hidden = Boolean(text) && !(line.textContent ?? "").toLowerCase().includes(text) && !(line.dataset.turn ?? "").includes(text);
  }
}

const reload = seldom(async () => {
  try {
    const [now] = await Promise.all([readTree(key), redraw()]);
    tree = now;
    trouble.hidden = true;
    show();
    search();
  } catch (error) {
    trouble.textContent = `What is here is as it was: ${error instanceof Error ? error.message : error}`;
    trouble.hidden = false;
  }
});
const pause = follow({ commit: (said) => said.key === key && reload(), changed: reload, listed: seldom(reload, 5000) });

tooltips(tokens, tokenPlace);
const markView = () => view() === "tokens" && requestAnimationFrame(() => strip.mark(tokens.inView));
scroller.addEventListener("scroll", markView, { passive: true });
find.addEventListener("input", search);
byId("by", HTMLSelectElement).addEventListener("change", (event) => ask({ by: /** @type {HTMLSelectElement} */ (event.target).value }));
for (const each of VIEWS) {
  byId(`tab-${each}`, HTMLAnchorElement).addEventListener("click", (event) => {
    event.preventDefault();
    shownTurn = "";
    ask({ view: each });
  });
}
document.addEventListener("click", (event) => {
  // A link to a turn keeps what else the address says.
  const link = event.target instanceof Element ? event.target.closest("a[href^='#turn=']") : null;
  if (!link) return;
  event.preventDefault();
  shownTurn = "";
  const turn = new URLSearchParams((link.getAttribute("href") ?? "").slice(1)).get("turn") ?? "";
  ask({ turn, branch: shownPath.some((each) => each.turn_id === turn) ? asked("branch") : null });
});
addEventListener("hashchange", show);
begin([
  ["j ArrowDown", "next turn of the branch", () => move(1)],
  ["k ArrowUp", "turn before", () => move(-1)],
  ["]", "next branch", () => turnTo(1)],
  ["[", "branch before", () => turnTo(-1)],
  ["1", "conversation", () => ask({ view: null })],
  ["2", "tokens", () => ask({ view: "tokens" })],
  ["3", "timing", () => ask({ view: "timing" })],
  ["c", "next meaning of the colours", () => ask({ view: "tokens", by: MODES[(MODES.indexOf(mode()) + 1) % MODES.length] ?? null })],
  ["/", "find a turn", () => find.focus()],
  ["p", "pause and go on following", pause],
]);
readTree(key).then((found) => {
  tree = found;
  show();
}, failed);
