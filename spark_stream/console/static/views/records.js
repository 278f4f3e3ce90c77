// The records of a topic under an isolation level, each with its state, found by a search.

import { get } from "../api.js";
import { h } from "../dom.js";
import { absolute, ago, count, counted, percent, printable } from "../format.js";
import { announce, badge, empty, heading, link, section, snippet, table, trouble } from "../widgets.js";
import { alone, opened, openRecord, placeOf } from "./record.js";

export const title = (params) => `Records of ${params.topic}`;
export const parts = [];

const LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"];
const EXPLANATIONS = {
  read_uncommitted: "All records of the log, including unreplicated and aborted records.",
  read_replicated: "Records on all in-sync replicas, independent of their transactions.",
  read_committed: "Replicated records without a transaction, or of a committed transaction.",
  read_atomic: "Like read_committed, but never a part of a transaction.",
};
const ORDERS = { newest: "newest first", oldest: "oldest first" };
const FIELDS = ["partition", "isolation", "filter", "since", "until", "offset", "order", "before", "after", "limit"];
const SEARCH_MS = 20_000; // afterwards the user decides whether the search continues

/** Search for the page of the address, and read its open records. */
export async function load(context) {
  const { store, params, query } = context;
  const asked = { topic: params.topic, column: query.getAll("column"), ...Object.fromEntries(FIELDS.map((name) => [name, query.get(name)])) };
  const before = store.records;
  before?.stopping.abort();
  store.records = { asked, topic: params.topic, page: before?.topic === params.topic ? before.page : undefined };
  for (const place of query.getAll("open")) openRecord(context, place);
  await search(context, store.records);
}

/** Search until the page is full or all of the range was searched, in short steps. */
async function search({ store, rerender }, found, continued = false) {
  const until = Date.now() + SEARCH_MS;
  const stopping = new AbortController();
  Object.assign(found, { loading: true, stopped: false, error: undefined, stopping });
  rerender();
  let page = continued ? found.page : undefined;
  try {
    while (!page || (!page.is_full && !isWhole(page) && Date.now() < until)) {
      page = joined(page, await get("/api/records", step(found.asked, page), stopping.signal), found.asked.order);
      if (store.records !== found) return; // another page was requested since
      found.page = page;
      found.at = Date.now();
      rerender();
    }
    announce(`${counted(page.rows.length, "record")}.`);
  } catch (error) {
    if (error.name !== "AbortError") found.error = error;
  }
  found.loading = false;
  rerender();
}

const isWhole = (page) => Object.values(page.ranges).every((each) => each.is_whole);
const places = (page, name) => Object.entries(page.ranges).map(([number, each]) => `${number}:${each[name]}`).join(",");

/** The next step of a search: from where it is, and for the records that the page lacks. */
function step(asked, page) {
  if (!page) return asked;
  const forward = asked.after || (asked.order === "oldest" && !asked.before);
  return {
    ...asked,
    before: null,
    after: null,
    [forward ? "after" : "before"]: places(page, "origin"),
    reached: places(page, "reached"),
    limit: Number(asked.limit ?? 50) - page.rows.length,
  };
}

/** A page with the records of its next step. */
function joined(page, next, order) {
  if (!page) return next;
  const rows = [...page.rows, ...next.rows];
  const sign = order === "oldest" ? 1 : -1;
  rows.sort((one, other) => sign * (one.moment - other.moment || other.partition - one.partition || one.offset - other.offset));
  return { ...next, rows };
}

export function render(context) {
  const { store, params } = context;
  const found = store.records?.topic === params.topic ? store.records : undefined;
  return [
    heading("Records", null, [link("/topics", "Topics"), " / ", link(`/topics/${encodeURIComponent(params.topic)}`, params.topic)]),
    form(context, found?.page),
    found?.error && trouble(found.error),
    !found?.page && !found?.error && h("p", { class: "quiet loading" }, "Reading…"),
    found?.page && !found.error && shown(found, context),
  ];
}

const address = (params, query) => `/topics/${encodeURIComponent(params.topic)}/records${query.size ? `?${query}` : ""}`;

function form({ query, go, params, store }, page) {
  const level = query.get("isolation") ?? LEVELS[0];
  const submit = (event) => {
    event.preventDefault();
    const kept = [...new FormData(event.target).entries()].filter(([, value]) => value !== "");
    go(address(params, new URLSearchParams([...kept, ...query.getAll("column").map((each) => ["column", each])])));
  };
  const choose = (event) => event.target.form.requestSubmit();
  const select = (label, name, otherwise, options) => h("label", {}, label,
    h("select", { name, value: query.get(name) ?? otherwise, onchange: choose }, options.map(([value, words]) => h("option", { value }, words))));
  const numbers = Array.from({ length: page?.partitions ?? Number(query.get("partition") ?? -1) + 1 }, (_, number) => [String(number), number]);
  return h("form", { class: "page-form", onsubmit: submit, "aria-label": "Which records" },
    h("fieldset", { class: "switch" }, h("legend", {}, "Isolation"), LEVELS.map((each) => h("label", {},
      h("input", { type: "radio", name: "isolation", value: each, checked: each === level, onchange: choose }), h("span", {}, each)))),
    h("p", { class: "quiet wide" }, EXPLANATIONS[level] ?? ""),
    select("Partition", "partition", "", [["", "all"], ...numbers]),
    h("label", { class: "grow" }, "Filter (Spark SQL)", h("input", { name: "filter", id: "filter", "aria-invalid": store.records?.error?.code === "INVALID_FILTER" ? "true" : null, value: query.get("filter") ?? "", placeholder: page?.columns.length ? `${page.columns[0].name} IS NOT NULL` : "", autocomplete: "off", spellcheck: "false" })),
    h("label", {}, "From (UTC)", h("input", { name: "since", type: "datetime-local", step: "1", value: query.get("since") ?? "" })),
    h("label", {}, "Before (UTC)", h("input", { name: "until", type: "datetime-local", step: "1", value: query.get("until") ?? "" })),
    h("label", { class: "narrow" }, "From offset", h("input", { name: "offset", inputmode: "numeric", pattern: "[0-9]{1,18}", title: "A number", value: query.get("offset") ?? "" })),
    select("Order", "order", "newest", Object.entries(ORDERS)),
    select("Records", "limit", "50", ["20", "50", "100", "200", "500"].map((each) => [each, each])),
    h("button", { class: "primary" }, "Search"));
}

function shown(found, context) {
  const { query } = context;
  const page = found.page;
  const typed = page.columns.filter((each) => page.shown.includes(each.name));
  const all = (query.get("partition") ?? "") === "";
  const columns = [[h("span", { class: "hidden" }, "Open"), ""], ...(all ? [["Partition", "number"]] : []), ["Offset", "number"], ["Time", ""], ["State", ""],
    ...typed.map((each) => [[each.name, h("span", { class: "type" }, each.type)], /int|decimal|float|double|short|byte/.test(each.type) ? "number" : ""])];
  return [
    progress(found, context),
    chooser(page, context),
    pager(context, page, found),
    !found.loading && query.getAll("open").filter((place) => !page.rows.some((row) => placeOf(row) === place)).map((place) => alone(place, context)),
    page.rows.length ? table(`Records of ${page.topic}`, columns, page.rows.flatMap((row) => [record(row, typed, all, columns, context), opened(row, columns.length, context)].filter(Boolean))) : nothing(found, query),
    page.rows.length > 0 && pager(context, page, null),
    page.rows.length > 0 && section("Read these records in code", h("p", { class: "quiet" }, "Both read exactly the records of this page."), h("div", { class: "two" }, snippet("Spark", page.spark), snippet("Python", page.python))),
  ];
}

/** How far an unfinished search is, with a button that ends or continues it. */
function progress(found, context) {
  const { page } = found;
  if (isWhole(page) || page.is_full) return null;
  const ranges = Object.values(page.ranges);
  const sum = (size) => ranges.reduce((total, each) => total + size(each), 0);
  const forward = found.asked.after || (found.asked.order === "oldest" && !found.asked.before);
  const searched = sum((each) => each.end - each.start);
  const whole = sum((each) => (forward ? each.greatest - each.origin : each.origin - each.least));
  return h("div", { class: "notice", role: "group", "aria-label": "Search", key: "search" },
    h("div", { class: "row" },
      h("p", {}, h("progress", { max: 1, value: (searched / Math.max(1, whole)).toFixed(4), "aria-label": "Searched" }),
        ` Searched ${count(searched)} of ${counted(whole, "offset")} (${percent(searched / Math.max(1, whole))}), found ${counted(page.rows.length, "record")}.`),
      found.loading
        ? h("button", { type: "button", key: "stop", onclick: () => found.stopping.abort() }, "Stop")
        : h("button", { type: "button", key: "continue", class: "primary", onclick: () => search(context, found, true) }, "Continue")));
}

/** The choice of columns, which the address keeps. */
function chooser(page, { query, go, params }) {
  if (page.columns.length < 2) return null;
  const choose = (event) => {
    const next = new URLSearchParams(query);
    next.delete("column");
    const chosen = new FormData(event.target.form).getAll("column");
    if (chosen.length < page.columns.length || page.columns.length > 20) for (const each of chosen) next.append("column", each);
    go(address(params, next));
  };
  return h("details", { class: "columns", key: "columns" },
    h("summary", {}, page.shown.length < page.columns.length ? `Columns: ${page.shown.length} of ${page.columns.length}` : "Columns: all"),
    h("form", { "aria-label": "Columns" }, page.columns.map((each) => h("label", { key: each.name },
      h("input", { type: "checkbox", name: "column", value: each.name, checked: page.shown.includes(each.name), disabled: page.shown.length === 1 && page.shown[0] === each.name, onchange: choose }), ` ${each.name}`))));
}

function record(row, typed, all, columns, context) {
  const first = all ? 2 : 1;
  const place = placeOf(row);
  const isOpen = context.query.getAll("open").includes(place);
  const toggle = () => {
    const next = new URLSearchParams(context.query);
    const others = next.getAll("open").filter((each) => each !== place);
    next.delete("open");
    for (const each of isOpen ? others : [...others, place]) next.append("open", each);
    history.replaceState(null, "", address(context.params, next));
    if (!isOpen) openRecord(context, place);
    context.rerender();
  };
  return h("tr", { key: place, class: isOpen ? "is-open" : null },
    h("td", { class: "toggle" }, h("button", { type: "button", class: "open-row", "aria-expanded": String(isOpen), "aria-label": `Record ${row.offset} of partition ${row.partition}`, onclick: toggle }, isOpen ? "▾" : "▸")),
    all && h("td", { class: "number" }, row.partition),
    h("th", { scope: "row", class: "number" }, count(row.offset)),
    h("td", { class: "nowrap" }, row.timestamp === null ? "–" : h("time", { datetime: row.timestamp, title: absolute(row.moment) }, ago(row.moment))),
    h("td", { class: "nowrap" }, badge(row.held_back ? "held_back" : (row.state ?? "unknown"), row.transaction === null ? undefined : `in transaction ${row.transaction}`)),
    typed.map((each, number) => h("td", { class: columns[first + 3 + number][1] },
      row.values[each.name] === null || row.values[each.name] === undefined ? h("span", { class: "quiet" }, "null") : h("div", { class: "value" }, printable(row.values[each.name])))));
}

function nothing({ loading, page }, query) {
  if (loading) return h("p", { class: "quiet" }, "No match yet.");
  const ranges = Object.values(page.ranges);
  const looked = ranges.reduce((sum, each) => sum + each.end - each.start, 0);
  if (ranges.every((each) => each.least >= each.greatest)) {
    const isBounded = ["since", "until", "offset"].some((name) => query.get(name));
    const seesAll = (query.get("isolation") ?? LEVELS[0]) === LEVELS[0];
    return empty("This isolation level shows no records here.", isBounded ? "Extend the range." : seesAll ? "The records appear after they are written." : "Choose read_uncommitted to see all records, or wait for records.");
  }
  const isWide = ranges.every((each) => each.start <= each.least && each.end >= each.greatest);
  return empty(`No match in ${counted(looked, "record")}.`, isWide ? "Change the filter." : "Search the other records, or change the filter.");
}

/** The offsets of a range, the last one included. */
function offsetsOf({ start, end }) {
  return start < end ? `offsets ${count(start)} to ${count(end - 1)}` : "no offsets";
}

function pager({ go, query, params }, page, found) {
  const ranges = Object.entries(page.ranges);
  const to = (name, value) => {
    const next = new URLSearchParams(query);
    for (const each of ["before", "after", "open"]) next.delete(each);
    if (name) next.set(name, value);
    go(address(params, next));
  };
  const older = ranges.some(([, each]) => each.start > each.least);
  const newer = ranges.some(([, each]) => each.end < each.greatest);
  const span = ranges.length === 1 ? offsetsOf(ranges[0][1]) : `${ranges.length} partitions`;
  const isOldest = query.get("order") === "oldest";
  return h("div", { class: "row pager" },
    h("div", { class: "buttons" },
      h("button", { type: "button", disabled: !newer && !query.get("before") && !query.get("after"), onclick: () => (isOldest ? to("before", places(page, "greatest")) : to()) }, "Latest"),
      h("button", { type: "button", disabled: !newer, onclick: () => to("after", places(page, "end")) }, "Newer"),
      h("button", { type: "button", disabled: !older, onclick: () => to("before", places(page, "start")) }, "Older"),
      h("button", { type: "button", disabled: !older, onclick: () => to("after", places(page, "least")) }, "Oldest")),
    found && h("p", { class: found.loading ? "quiet loading" : "quiet" }, found.loading ? "Searching…" : [`${counted(page.rows.length, "record")} of ${span}, read `, ago(found.at)]));
}
