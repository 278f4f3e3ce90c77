// Calls to the console's server, and the stream of changes.

/** An error of the server, with a message and a hint. */
export class Failure extends Error {
  /** @param {{code: string, message: string, hint: string}} error @param {number} status @param {any} [plan] a new plan */
  constructor(error, status, plan) {
    super(error.message);
    this.code = error.code;
    this.hint = error.hint;
    this.details = error.details;
    this.plan = plan;
    this.status = status;
  }
}

const NO_ANSWER = {
  code: "NO_ANSWER",
  message: "The console's server does not answer.",
  hint: "Check that `isolog console` is running. This page reconnects automatically.",
};

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(NO_ANSWER, 0);
  }
  let found;
  try {
    found = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(NO_ANSWER, response.status);
  }
  if (!response.ok) throw new Failure(found.error, response.status, found.plan);
  return found;
}

/**
 * A list in the query becomes several fields.
 * @param {string} path @param {Object<string, any>} [query] @param {AbortSignal} [signal] ends the request
 */
export function get(path, query = {}, signal = undefined) {
  const fields = Object.entries(query).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  const kept = fields.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return answer(fetch(`${path}?${new URLSearchParams(kept)}`, { signal }));
}

/** @param {string} path @param {Object<string, string>} body */
export function post(path, body = {}) {
  return answer(
    fetch(path, { method: "POST", headers: { "x-isolog-console": "1", "content-type": "application/json" }, body: JSON.stringify(body) }),
  );
}

/**
 * Follow parts of the board, and a topic. Return a function that stops it.
 * @param {string[]} parts @param {string | null} topic
 * @param {(name: string, part: any) => void} onPart @param {(state: string) => void} onState
 */
export function follow(parts, topic, onPart, onState) {
  const query = new URLSearchParams({ parts: parts.join(",") });
  if (topic !== null) query.set("topic", topic);
  const source = new EventSource(`/api/stream?${query}`);
  for (const name of [...parts, "topic"]) {
    source.addEventListener(name, (event) => onPart(name, JSON.parse(event.data)));
  }
  source.addEventListener("over", () => {
    source.close();
    onState("over");
  });
  source.onopen = () => onState("live");
  source.onerror = () => onState(source.readyState === EventSource.CLOSED ? "over" : "lost");
  return () => source.close();
}
