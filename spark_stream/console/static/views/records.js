// The records of a topic under an isolation level, each with its state.

import { get } from "../api.js";
import { h } from "../dom.js";
import { absolute, ago, count, counted } from "../format.js";
import { announce, badge, empty, heading, link, section, snippet, table, trouble } from "../widgets.js";

export const title = (params) => `Records of ${params.topic}`;
export const parts = [];

const LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"];
const EXPLANATIONS = {
  read_uncommitted: "All records of the log, including unreplicated and aborted records.",
  read_replicated: "Records on all in-sync replicas, independent of their transactions.",
  read_committed: "Replicated records without a transaction, or of a committed transaction.",
  read_atomic: "Like read_committed, but never a part of a transaction.",
};
const NAMES = ["partition", "isolation", "filter", "since", "until", "before", "after", "limit"];

/** Read the page of the address. */
export async function load({ store, params, query, rerender }) {
  const wanted = Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
  const number = (store.reading = (store.reading ?? 0) + 1);
  store.records = { ...store.records, loading: true, topic: params.topic };
  rerender();
  let found;
  try {
    found = { page: await get("/api/records", { topic: params.topic, ...wanted }) };
  } catch (error) {
    found = { error };
  }
  if (number !== store.reading) return; // another page was requested since
  store.records = { ...found, loading: false, topic: params.topic, at: Date.now() };
  if (found.page) announce(`${counted(found.page.rows.length, "record")}.`);
  rerender();
}

export function render(context) {
  const { store, params, query } = context;
  const found = store.records?.topic === params.topic ? store.records : undefined;
  return [
    heading("Records", null, [link("/topics", "Topics"), " / ", link(`/topics/${encodeURIComponent(params.topic)}`, params.topic)]),
    form(context, found?.page),
    found?.error && trouble(found.error),
    !found?.page && !found?.error && h("p", { class: "quiet loading" }, "Reading…"),
    found?.page && shown(found, context, query),
  ];
}

function form({ query, go, params }, page) {
  const level = query.get("isolation") ?? LEVELS[0];
  const submit = (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    const kept = [...given.entries()].filter(([, value]) => value !== "");
    go(`/topics/${encodeURIComponent(params.topic)}/records?${new URLSearchParams(kept)}`);
  };
  const choose = (event) => event.target.form.requestSubmit();
  return h("form", { class: "page-form", onsubmit: submit, "aria-label": "Which records" },
    h("fieldset", { class: "switch" }, h("legend", {}, "Isolation"), LEVELS.map((each) => h("label", {},
      h("input", { type: "radio", name: "isolation", value: each, checked: each === level, onchange: choose }), h("span", {}, each)))),
    h("p", { class: "quiet wide" }, EXPLANATIONS[level] ?? ""),
    h("label", {}, "Partition", h("select", { name: "partition", value: query.get("partition") ?? "", onchange: choose },
      h("option", { value: "" }, "all"), Array.from({ length: page?.partitions ?? Number(query.get("partition") ?? -1) + 1 }, (_, number) => h("option", { value: String(number) }, number)))),
    h("label", { class: "grow" }, "Filter (Spark SQL)", h("input", { name: "filter", id: "filter", value: query.get("filter") ?? "", placeholder: "dep_delay > 60", autocomplete: "off", spellcheck: "false" })),
    h("label", {}, "From (UTC)", h("input", { name: "since", type: "datetime-local", step: "1", value: query.get("since") ?? "" })),
    h("label", {}, "Before (UTC)", h("input", { name: "until", type: "datetime-local", step: "1", value: query.get("until") ?? "" })),
    h("label", {}, "Records", h("select", { name: "limit", value: query.get("limit") ?? "50", onchange: choose }, ["20", "50", "100", "200", "500"].map((each) => h("option", { value: each }, each)))),
    h("button", { class: "primary" }, "Read"));
}

function shown(found, context, query) {
  const page = found.page;
  const ranges = Object.entries(page.ranges);
  const typed = page.columns;
  const all = (query.get("partition") ?? "") === "";
  const columns = [...(all ? [["Partition", "number"]] : []), ["Offset", "number"], ["Time", ""], ["State", ""],
    ...typed.map((each) => [[each.name, h("span", { class: "type" }, each.type)], /int|decimal|float|double|short|byte/.test(each.type) ? "number" : ""])];
  return [
    pager(context, page, ranges, found),
    page.rows.length ? table(`Records of ${page.topic}`, columns, page.rows.map((row) => record(row, typed, all, columns))) : nothing(ranges, query),
    page.rows.length > 0 && pager(context, page, ranges, null),
    section("Read these records in code", h("p", { class: "quiet" }, "Both read exactly the records of this page."), h("div", { class: "two" }, snippet("Spark", page.spark), snippet("Python", page.python))),
  ];
}

function record(row, typed, all, columns) {
  const first = all ? 1 : 0;
  return h("tr", { key: `${row.partition} ${row.offset}` },
    all && h("td", { class: "number" }, row.partition),
    h("th", { scope: "row", class: "number" }, count(row.offset)),
    h("td", { class: "nowrap" }, row.timestamp === null ? "–" : h("time", { datetime: row.timestamp, title: absolute(row.moment) }, ago(row.moment))),
    h("td", { class: "nowrap" }, badge(row.held_back ? "held_back" : (row.state ?? "unknown"), row.transaction === null ? undefined : `in transaction ${row.transaction}`)),
    typed.map((each, number) => h("td", { class: columns[first + 3 + number][1] },
      row.values[each.name] === null || row.values[each.name] === undefined ? h("span", { class: "quiet" }, "null") : h("div", { class: "value" }, row.values[each.name]))));
}

function nothing(ranges, query) {
  const looked = ranges.reduce((sum, [, each]) => sum + each.end - each.start, 0);
  if (ranges.every(([, each]) => each.least >= each.greatest)) {
    return empty("This isolation level shows no records here.", query.get("since") || query.get("until") ? "Extend the time range." : "Choose read_uncommitted to see all records, or wait for records.");
  }
  return empty(`No match in ${counted(looked, "record")}.`, "Search older records, or change the filter.");
}

function pager({ go, query, params }, page, ranges, found) {
  const to = (name, value) => {
    const next = new URLSearchParams(query);
    next.delete("before");
    next.delete("after");
    if (name) next.set(name, value);
    go(`/topics/${encodeURIComponent(params.topic)}/records?${next}`);
  };
  const places = (name) => ranges.map(([number, each]) => `${number}:${each[name]}`).join(",");
  const older = ranges.some(([, each]) => each.start > each.least);
  const newer = ranges.some(([, each]) => each.end < each.greatest);
  const span = ranges.length === 1 ? `offsets ${count(ranges[0][1].start)} to ${count(ranges[0][1].end)}` : `${ranges.length} partitions`;
  return h("div", { class: "row pager" },
    h("div", { class: "buttons" },
      h("button", { type: "button", disabled: !newer && !query.get("before") && !query.get("after"), onclick: () => to() }, "Latest"),
      h("button", { type: "button", disabled: !newer, onclick: () => to("after", places("end")) }, "Newer"),
      h("button", { type: "button", disabled: !older, onclick: () => to("before", places("start")) }, "Older"),
      h("button", { type: "button", disabled: !older, onclick: () => to("after", places("least")) }, "Oldest")),
    found && h("p", { class: found.loading ? "quiet loading" : "quiet" }, found.loading ? "Reading…" : [`${counted(page.rows.length, "record")} of ${span}, read `, ago(found.at)]));
}
