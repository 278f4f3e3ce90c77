// The permissions of the user for the actions that views offer. They are looked up together, and again
// after a while.

import { post } from "./api.js";

const AGE_MS = 15_000;
const AT_ONCE = 200;

/** The reason of each action, with the time of its lookup. A reason is null until it is known. */
const known = new Map();
const wanted = new Map();

/**
 * The reason for which the user may not do an action: "" if it may, null if that is not known yet.
 * @param {Object<string, any>} intent the action and its parameters
 */
export function refusalOf(intent) {
  const key = JSON.stringify(intent);
  const found = known.get(key);
  if (!found || Date.now() - found.at > AGE_MS) {
    known.set(key, { refusal: found?.refusal ?? null, at: Date.now() });
    if (!wanted.size) setTimeout(lookUp);
    wanted.set(key, intent);
  }
  return known.get(key).refusal;
}

/** Drop all reasons: another user may log in. */
export function forgetPermissions() {
  known.clear();
}

async function lookUp() {
  const asked = [...wanted].slice(0, AT_ONCE);
  for (const [key] of asked) wanted.delete(key);
  try {
    const { refusals } = await post("/api/permissions", asked.map(([, intent]) => intent));
    asked.forEach(([key], at) => known.set(key, { refusal: refusals[at], at: Date.now() }));
  } catch {
    // Without an answer the actions are offered. The brokers check them.
    for (const [key] of asked) known.set(key, { refusal: known.get(key)?.refusal ?? "", at: Date.now() });
  }
  for (const [key, { at }] of known) if (Date.now() - at > 10 * AGE_MS) known.delete(key);
  if (wanted.size) setTimeout(lookUp);
  document.dispatchEvent(new CustomEvent("permissions"));
}
