/**
 * Which sessions are listed, and in which order: from the query of the page's address, so that a list can be linked to.
 *
 * @typedef {import("./documents.js").Row} Row
 * @typedef {[low: number, high: number]} Range
 */

/** @type {Record<string, (row: Row) => number | null>} */
const NUMBERS = { reward: (row) => row.reward, branches: (row) => row.branches, length: (row) => row.tokens };
/** @type {Record<string, (row: Row) => string | null>} */
const TEXTS = {
  q: (row) => `${row.session_id} ${row.task_id ?? ""} ${row.group_id ?? ""}`,
  task: (row) => row.task_id,
  group: (row) => row.group_id,
};
/** @type {Record<string, (row: Row) => string | number | null>} */
export const ORDERS = {
  task: (row) => row.task_id,
  group: (row) => row.group_id,
  state: (row) => row.state,
  turns: (row) => row.turns,
  length: (row) => row.tokens,
  branches: (row) => row.branches,
  reward: (row) => row.reward,
  version: (row) => row.version_max,
  created: (row) => row.created_at,
};
export const RANGES = ["reward", "branches", "length", "version"];
const NUMBER = String.raw`[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?`;
const RANGE = new RegExp(`^\\s*(?:(${NUMBER})|(${NUMBER})?\\s*\\.\\.\\s*(${NUMBER})?|([<>])=?\\s*(${NUMBER}))\\s*$`, "i");

/**
 * `3`, `0.5..1`, `..2`, `>=4`; null of anything else.
 * @param {string} text
 * @returns {Range | null}
 */
export function range(text) {
  const found = RANGE.exec(text);
  if (!found) return null;
  const [, only, low, high, sign, bound] = found;
  if (only !== undefined) return [Number(only), Number(only)];
  if (sign) return sign === ">" ? [Number(bound), Infinity] : [-Infinity, Number(bound)];
  return [low === undefined ? -Infinity : Number(low), high === undefined ? Infinity : Number(high)];
}

/**
 * @param {readonly Row[]} rows
 * @param {URLSearchParams} asked a range that isn't one is left out
 * @returns {Row[]}
 */
export function chosen(rows, asked) {
  const tests = [...asked].map(([name, value]) => test(name, value.trim())).filter((each) => each !== null);
  return sorted(rows.filter((row) => tests.every((holds) => holds(row))), asked.get("sort") ?? "-created");
}

/** @param {string} name @param {string} value @returns {((row: Row) => boolean) | null} */
function test(name, value) {
  const text = TEXTS[name];
  if (!value) return null;
  if (text) return (row) => (text(row) ?? "").toLowerCase().includes(value.toLowerCase());
  if (name === "state") return (row) => [row.state, row.outcome, row.fate, row.source].includes(value);
  const bounds = RANGES.includes(name) ? range(value) : null;
  if (!bounds) return null;
  const [low, high] = bounds;
  if (name === "version") return (row) => row.version_min != null && row.version_min <= high && (row.version_max ?? row.version_min) >= low;
  const number = /** @type {(row: Row) => number | null} */ (NUMBERS[name]);
  return (row) => {
    const has = number(row);
    return has != null && has >= low && has <= high;
  };
}

/** @param {Row[]} rows @param {string} by a column, with `-` before it the other way round; what isn't known comes last */
function sorted(rows, by) {
  const backwards = by.startsWith("-");
  const value = ORDERS[backwards ? by.slice(1) : by];
  if (!value) return rows;
  const sign = backwards ? -1 : 1;
  return rows
    .map((row) => /** @type {const} */ ([value(row), row]))
    .sort(([one], [other]) => (one == null || other == null ? Number(one == null) - Number(other == null) : one < other ? -sign : one > other ? sign : 0))
    .map(([, row]) => row);
}
