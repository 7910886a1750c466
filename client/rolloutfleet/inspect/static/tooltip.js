/** What is known of the token under the pointer; a click keeps it. */

import { byId, closest, make } from "./dom.js";
import { count, decimal } from "./text.js";

/** @param {import("./tokens.js").TokenView} view @param {HTMLElement} place */
export function tooltips(view, place) {
  const tip = byId("tip", HTMLElement);
  let kept = false;
  /** @type {HTMLElement | null} */
  let of = null;
  let height = 0;
  const hide = () => {
    kept = false;
    tip.hidden = true;
    for (const each of place.querySelectorAll(".t.kept")) each.classList.remove("kept");
  };
  const show = (/** @type {HTMLElement} */ token) => {
    const facts = described(view, token);
    if (!facts) return;
    of = token;
    height = token.getBoundingClientRect().top;
    tip.replaceChildren(...facts);
    tip.hidden = false;
    const { left, bottom, top } = token.getBoundingClientRect();
    const { width, height: tall } = tip.getBoundingClientRect();
    tip.style.setProperty("left", `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`);
    tip.style.setProperty("top", `${bottom + tall + 12 > innerHeight ? Math.max(8, top - tall - 6) : bottom + 6}px`);
  };
  place.addEventListener("pointerover", (event) => {
    const token = closest(event, ".t[data-at]");
    if (kept) return;
    if (token) show(token);
    else hide();
  });
  place.addEventListener("pointerleave", () => kept || hide());
  place.addEventListener("click", (event) => {
    const token = closest(event, ".t[data-at]");
    hide();
    if (!token) return;
    show(token);
    kept = true;
    token.classList.add("kept");
  });
  view.blocks.scroller.addEventListener("scroll", () => of?.getBoundingClientRect().top !== height && hide(), { passive: true });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
}

/** @param {import("./tokens.js").TokenView} view @param {HTMLElement} token */
function described(view, token) {
  const told = view.told(token);
  if (!told) return null;
  const { tokens, turn, first, many } = told;
  const sampled = tokens.start + first >= turn.new_prompt_tokens;
  /** @param {readonly (number | null)[] | undefined} of @param {(value: number | null) => string} [as] */
  const each = (of, as = String) => (of ?? []).slice(first, first + many).map(as).join(", ");
  /** @type {[string, string][]} */
  const facts = [
    [many > 1 ? "ids" : "id", each(tokens.input_ids)],
    ["position", `${count(tokens.start + first)} of turn ${turn.number}, ${sampled ? "sampled" : "prompt"}`],
  ];
  if (sampled) {
    facts.push(["log-probability", each(tokens.logprobs, (value) => (value ?? 0).toFixed(4))]);
    facts.push(["probability", each(tokens.logprobs, (value) => `${(Math.exp(value ?? 0) * 100).toFixed(2)}%`)]);
    facts.push(["version", each(tokens.versions)], ["loss mask", each(tokens.loss_mask)]);
    for (const [name, numbers] of Object.entries(tokens.annotations)) facts.push([`trainer: ${name}`, each(numbers, (value) => decimal(value, 5))]);
    const trainers = tokens.annotations.logprobs?.[first];
    if (trainers != null) facts.push(["mismatch", decimal(trainers - (tokens.logprobs[first] ?? 0), 4)]);
  }
  const text = tokens.texts[first];
  return [make("code", {}, text == null ? "part of a character" : JSON.stringify(text)), make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))];
}
