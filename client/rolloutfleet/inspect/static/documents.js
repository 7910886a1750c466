/**
 * The documents that a page reads: at the same addresses, relative to the page, from the server and in a bundle.
 *
 * @typedef {{key: string, session_id: string, task_id: string | null, group_id: string | null, group: string | null, state: string,
 *   outcome: string | null, fate: string | null, ordinal: number | null, source: string, created_at: number | null,
 *   turns: number | null, tokens: number | null, branches: number | null, reward: number | null,
 *   version_min: number | null, version_max: number | null}} Row
 * @typedef {{sessions: Row[], complete: boolean}} Sessions
 * @typedef {{queue: number, tokenise_in: number, pause: number, engine: number, tokenise_out: number}} Timing
 * @typedef {{message: number | null, field: string}} Reason
 * @typedef {{turn_id: string, name: string, parent_id: string | null, number: number, depth: number, forks: boolean,
 *   created_at: number, lineage: {id: string | null, kind: string, parent: string | null}, branch_reason: Reason | null,
 *   reward: number | null, finish_reason: string, trajectory_id: string | null, trajectory_state: string | null,
 *   discarded: boolean, delivered: boolean, prompt_tokens: number, completion_tokens: number,
 *   new_prompt_tokens: number, timing: Timing | null, note: string | null}} TreeTurn
 * @typedef {{session: Partial<Row> & {session_id: string}, turns: TreeTurn[], branches: string[]}} Tree
 * @typedef {{index: number, message: Record<string, unknown>, cut: number | null}} Message
 * @typedef {{lease_id: string, state: string, leased_at: number | null, acknowledged_at: number | null}} Lease
 * @typedef {TreeTurn & {messages: Message[], tools: unknown[] | null, leases: Lease[], chunks: number, tokens: number,
 *   strip?: (number | null)[] | null}} Turn
 * @typedef {{start: number, input_ids: number[], texts: (string | null)[], logprobs: number[], versions: number[],
 *   loss_mask: number[], annotations: Record<string, (number | null)[]>}} Tokens
 */

/** Where the page's own files are, whichever page it is. */
export const ROOT = new URL("../", import.meta.url);
/** Tokens of a chunk. */
export const CHUNK = 512;

/**
 * @template T
 * @param {string} path below `data/`
 * @param {AbortSignal} [signal]
 * @returns {Promise<T>}
 */
export async function read(path, signal) {
  const answer = await fetch(new URL(`data/${path}`, ROOT), { signal });
  if (!answer.ok) throw new Error(await refusal(answer));
  return answer.json();
}

/**
 * @param {Response} answer
 * @returns {Promise<string>} what a person can do about it
 */
export async function refusal(answer) {
  if (answer.status === 401) return "This page is no longer open to you: open the address that rolloutfleet inspect printed last.";
  const said = await answer.text();
  try {
    return JSON.parse(said).error.message;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

/** @param {string} key @param {AbortSignal} [signal] @returns {Promise<Tree>} */
export const readTree = (key, signal) => read(`sessions/${encodeURIComponent(key)}/tree.json`, signal);

/** @param {string} key @param {string} turn its `name` */
export const turnPath = (key, turn) => `sessions/${encodeURIComponent(key)}/turns/${encodeURIComponent(turn)}.json`;

/** @param {string} key @param {string} turn @param {AbortSignal} [signal] @returns {Promise<Turn>} */
export const readTurn = (key, turn, signal) => read(turnPath(key, turn), signal);

/** @param {string} key @param {string} turn @param {number} chunk @param {AbortSignal} [signal] @returns {Promise<Tokens>} */
export const readTokens = (key, turn, chunk, signal) =>
  read(`sessions/${encodeURIComponent(key)}/turns/${encodeURIComponent(turn)}/tokens/${chunk}.json`, signal);

/**
 * Mean probabilities of equal parts of a turn's output. A long turn has them in a document of their own.
 * @param {string} key @param {string} turn
 * @returns {Promise<(number | null)[]>}
 */
export async function readStrip(key, turn) {
  const { strip } = await readTurn(key, turn);
  if (strip) return strip;
  return (await read(turnPath(key, turn).replace(/\.json$/, "/strip.json"))).strip;
}

/** @returns {Promise<{sessions: number, newest: Row[], complete: boolean}>} */
export const readFleet = () => read("fleet.json");

/** @returns {Promise<Sessions>} */
export const readSessions = () => read("sessions.json");
