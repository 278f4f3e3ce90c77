// Elements of several views: notices, tables, states, and copy buttons.

import { h } from "./dom.js";
import { clock, duration } from "./format.js";

/** The states of records and transactions: a sign and words, so that colour is never needed. */
const STATES = {
  committed: ["●", "committed", "good"],
  held_back: ["◧", "committed, held back", "wait"],
  open: ["◐", "open", "wait"],
  committing: ["◕", "committing", "wait"],
  aborting: ["◔", "aborting", "wait"],
  aborted: ["✕", "aborted", "idle"],
  not_replicated: ["◌", "not yet replicated", "idle"],
  empty: ["○", "none yet", "idle"],
  expired: ["○", "expired", "idle"],
  unknown: ["?", "unknown", "idle"],
  alive: ["●", "alive", "good"],
  slow: ["◔", "slow", "bad"],
  silent: ["✕", "does not answer", "bad"],
  dead: ["✕", "dead", "bad"],
  running: ["●", "running", "good"],
  catching_up: ["↗", "catching up", "good"],
  grows: ["↘", "falls behind", "wait"],
  waiting_at_lso: ["◧", "waiting at the LSO", "wait"],
  stalled: ["✕", "stalled", "bad"],
  stopped: ["○", "stopped", "idle"],
  gone: ["✕", "gone", "bad"],
  no_members: ["○", "empty", "idle"],
  problem: ["✕", "problem", "bad"],
  worker_stopped: ["✕", "worker stopped", "bad"],
  no_worker: ["✕", "no worker", "bad"],
  up_to_date: ["●", "up to date", "good"],
};

/** @param {string} state @param {string} [title] */
export function badge(state, title) {
  const [sign, words, tone] = STATES[state] ?? ["?", state, "idle"];
  return h("span", { class: `badge ${tone}`, title }, h("span", { "aria-hidden": "true" }, sign), ` ${words}`);
}

/** @param {string} title @param {any} [beside] @param {any} [trail] the way here */
export function heading(title, beside, trail) {
  return h("div", { class: "heading" },
    trail && h("nav", { class: "trail", "aria-label": "Location" }, trail),
    h("div", { class: "row" }, h("h1", { id: "title", tabindex: "-1" }, title), beside));
}

/** A link that changes the view without loading the page. */
export function link(href, ...children) {
  return h("a", { href }, ...children);
}

/** @param {string} text @param {any} [more] what to do */
export function empty(text, more) {
  return h("div", { class: "empty" }, h("p", {}, text), more && h("p", { class: "quiet" }, remedy(more)));
}

/** @param {{code?: string, message: string, hint?: string}} error @param {string} [what] still shown */
export function trouble(error, what) {
  return h("div", { class: "notice bad", role: "group", "aria-label": "Error" },
    h("p", {}, h("strong", {}, sentence(error.message, error.details)), error.hint && [" ", remedy(error.hint, error.details)]),
    what && h("p", { class: "quiet" }, what),
    error.code && h("p", { class: "quiet" }, h("code", {}, error.code)));
}

/**
 * A text as a sentence. A name at its begin keeps its letters: one of the details of an error, or a
 * word with other signs than letters. @param {string} text @param {Object<string, any>} [details]
 */
export function sentence(text, details = {}) {
  const isName = !/^[a-z]+(-[a-z]+)*(['’]s)?[,.]?(\s|$)/.test(text) || Object.values(details).includes(text.split(/\s/, 1)[0]);
  const whole = isName ? text : text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

/**
 * The view of a part: its value, an error beside it, or the reasons for a missing answer.
 * @param {any} store @param {string} name of the part @param {(value: any) => any} show
 */
export function shownPart(store, name, show) {
  const part = store.parts[name];
  const known = part?.value !== null && part?.value !== undefined;
  if (!known && !part?.error) {
    const late = problemsOf(store, (each) => /^(no_answer|slow|dead_broker) /.test(each.key));
    return [h("p", { class: "quiet loading" }, "Loading…"), notice(late, "Possible reasons for the delay")];
  }
  return [
    part.error && trouble(part.error, known ? "The data below is out of date." : undefined),
    known && show(part.value),
  ];
}

/** The problems that pass a test. @param {any} store @param {(each: any) => boolean} test */
export function problemsOf(store, test) {
  return (store.parts.problems?.value.found ?? []).filter(test);
}

/** The style of the records that a transaction holds back, by the severity of its problem, if any. */
export function holdsClass(store, transaction) {
  const [found] = problemsOf(store, (each) => each.key === `holds ${transaction?.transactional_id} ${transaction?.number}`);
  return found ? ` ${found.severity === "bad" ? "bad" : "wait"}-text` : "";
}

/**
 * A notice with problems, null without problems. Each is one line below its cause. A line opens to
 * its remedy and its places, as the causes are at first. @param {any[]} found
 */
export function notice(found, title = "Problems") {
  if (!found.length) return null;
  const tone = found.some((each) => each.severity === "bad") ? "bad" : "wait";
  const keys = new Map(found.map((each) => [each.key, each]));
  const depth = (each) => (keys.has(each.cause) ? 1 + depth(keys.get(each.cause)) : 0);
  return h("div", { class: `notice ${tone}`, role: "group", "aria-label": title, key: title },
    h("h2", {}, title),
    h("ul", { class: "problems" }, found.map((each) => h("li", { key: each.key, class: `depth-${Math.min(3, depth(each))}` }, problem(each, depth(each) === 0)))));
}

function problem(each, isRoot) {
  return h("details", { open: isRoot },
    h("summary", {}, !isRoot && h("span", { class: "hidden" }, "Effect: "), h("strong", {}, name(sentence(each.message))),
      h("span", { class: "age" }, ` ${each.key.startsWith("holds ") ? "Open" : "Seen"} for ${duration((Date.now() - each.since_ms) / 1000)}, since ${clock(each.since_ms)}.`)),
    h("p", {},
      each.places.some((name) => !each.message.includes(name)) && [listed(each.places.map(place)), ". "],
      each.hint && [remedy(each.hint), " "],
      each.href && each.href !== location.pathname && link(each.href, "Details", h("span", { class: "hidden" }, `: ${each.message}`))));
}

/**
 * A remedy. A command at its end is code, and so are its parts in backticks.
 * @param {string} text @param {Object<string, any>} [details]
 */
export function remedy(text, details) {
  const [, words, command] = /^(.*: )(isolog (?:(?!\. ).)*?)\.?$/.exec(text) ?? [];
  if (command) return [words, h("code", {}, command)];
  return sentence(text, details).split("`").map((each, at) => (at % 2 ? h("code", {}, each) : each));
}

/** A link to a partition. @param {string} name topic/partition */
function place(name) {
  const [, topic, number] = /^(.*)\/(\d+)$/.exec(name);
  return link(`/topics/${encodeURIComponent(topic)}/${number}`, name);
}

/** @param {any[]} all */
export function listed(all) {
  return all.flatMap((each, at) => [at > 0 && ", ", each]);
}

/** What an offset of a partition is, for those who do not know its short name. */
const OFFSETS = {
  LSO: "Last stable offset: read_committed reads up to the first open transaction",
  HW: "High watermark: all in-sync replicas have the records before it",
  LEO: "Log end offset: the offset of the next record",
};

/** A short name with what it means. @param {string} name */
export function short(name) {
  return h("abbr", { title: OFFSETS[name] }, name);
}

/**
 * A table; on a small screen each row is a card, with the headings beside its values.
 * Columns: [heading, "number" or ""]. @param {string} caption
 * @param {Array<[any, string]>} columns @param {any[]} rows
 */
export function table(caption, columns, rows) {
  for (const row of rows) row.children.forEach((cell, at) => (cell.props["data-label"] = words(columns[at][0])));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, columns.map(([text, kind], at) => (text === "" ? h("td", { key: `empty ${at}` }) : h("th", { key: `heading ${at}`, scope: "col", class: kind, title: words(text) }, text))))),
      h("tbody", {}, rows)));
}

/** The text of a heading. */
function words(heading) {
  if (Array.isArray(heading)) return words(heading[0]);
  return typeof heading === "string" ? heading : heading.children.map(words).join("");
}

/** Text that may be broken after a comma or an equals sign. @param {string | null} text */
export function breakable(text) {
  return text && text.split(/(?<=[=,:])/).flatMap((each) => [each, h("wbr")]);
}

/** @param {Array<[string, any]>} pairs names and values */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== false)
    .map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, typeof value === "string" ? name(value) : value))));
}

const FOLDED = "isolog folded";

function folded() {
  try {
    return new Set(JSON.parse(localStorage.getItem(FOLDED) ?? "[]"));
  } catch {
    return new Set();
  }
}

/** A part of a view that folds. The browser keeps its state. @param {string} title @param {any} children */
export function section(title, ...children) {
  const id = `part-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const keep = (event) => {
    const all = folded();
    event.target.open ? all.delete(id) : all.add(id);
    localStorage.setItem(FOLDED, JSON.stringify([...all]));
  };
  return h("section", { "aria-labelledby": id, key: id },
    h("details", { class: "card", open: !folded().has(id), ontoggle: keep }, h("summary", {}, h("h2", { id }, title)), ...children));
}

const UUID = /([0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})/;

/** A name, in which an id that a program chose is not prominent. @param {string | null} text */
export function name(text) {
  return text && text.split(UUID).map((each, at) => (at % 2 ? h("span", { class: "uuid" }, each) : each));
}

/** Code with a button that copies it. @param {string} title @param {string} text */
export function snippet(title, text) {
  return h("figure", { class: "snippet", key: title },
    h("figcaption", { class: "row" }, h("span", {}, title),
      copyButton(`code for ${title}`, text)),
    h("pre", { tabindex: "0", role: "region", "aria-label": `Code for ${title}` }, h("code", {}, text)));
}

/** @param {string} what @param {string} text */
export function copyButton(what, text) {
  return h("button", { type: "button", onclick: (event) => copy(event.currentTarget, text), "aria-label": `Copy the ${what}` }, "Copy");
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
    button.textContent = "Copied";
  } catch {
    announce("The browser does not allow copying. Select the text instead.");
    button.textContent = "Select the text";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

/** Tell those who do not see the page. @param {string} text */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
