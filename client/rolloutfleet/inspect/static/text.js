/** How numbers, times and what others wrote are put into words. */

const SUSPECT = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;
/** Joiners are within emoji and words of some scripts, and steer nothing. */
const KEPT = "\n\t\u200c\u200d";
const STEPS = /** @type {[number, string][]} */ ([[86400, "d"], [3600, "h"], [60, "min"]]);

/**
 * A text with what would turn its direction or hide written out: `\x1b`, `\u202e`.
 * @param {unknown} text
 */
export function shown(text) {
  return String(text).replace(SUSPECT, (letter) => (KEPT.includes(letter) ? letter : escaped(letter)));
}

/** @param {string} letter */
function escaped(letter) {
  const code = /** @type {number} */ (letter.codePointAt(0));
  if (letter === "\r") return "\\r";
  const hex = code.toString(16);
  return code < 0x100 ? `\\x${hex.padStart(2, "0")}` : code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

// Made once: making one takes longer than all else that draws a row.
const NUMBER = new Intl.NumberFormat("en-GB");
const TIME = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** @param {number | null | undefined} value */
export const count = (value) => (value == null ? "–" : NUMBER.format(value));

/** @param {number | null | undefined} value @param {string} one `1 turn`, `2 turns` */
export const counted = (value, one) => `${count(value)} ${value === 1 ? one : `${one}s`}`;

/** @param {number | null | undefined} value @param {number} [digits] */
export const decimal = (value, digits = 3) => (value == null ? "–" : Number(value.toPrecision(digits)).toString());

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  return seconds < 100 ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : ago(seconds);
}

/** @param {number} seconds */
export function ago(seconds) {
  const [size, unit] = STEPS.find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Math.floor(Math.max(0, seconds) / size)} ${unit}`;
}

/** @param {number | null | undefined} at seconds since the epoch */
export const clock = (at) => (at ? TIME.format(at * 1000) : "–");

/** @param {number | null | undefined} low @param {number | null | undefined} high */
export const versions = (low, high) => (low == null ? "–" : low === high || high == null ? `v${low}` : `v${low}–${high}`);

/** @param {{message: number | null, field: string}} reason */
export const reasonText = (reason) => (reason.message == null ? reason.field : `${reason.field} of message ${reason.message}`);
