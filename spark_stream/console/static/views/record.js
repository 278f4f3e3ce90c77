// One record as a whole, below its row: all columns with their types, and its JSON to copy.

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, counted, printable } from "../format.js";
import { badge, copyButton, facts, trouble } from "../widgets.js";

const KEPT = 50; // whole records in the memory of the page

/** The place of a record in an address, such as "0:17". */
export const placeOf = (row) => `${row.partition}:${row.offset}`;

/** Read a record unless it is known. */
export async function openRecord({ store, params, rerender }, place) {
  const name = `${params.topic} ${place}`;
  const known = (store.whole ??= new Map());
  if (known.has(name) && !known.get(name).error) return;
  if (known.size >= KEPT) known.delete(known.keys().next().value);
  known.set(name, {});
  const [partition, offset] = place.split(":");
  try {
    known.set(name, { record: await get("/api/record", { topic: params.topic, partition, offset }) });
  } catch (error) {
    known.set(name, { error });
  }
  rerender();
}

/** The row below an open record, null if it is closed. */
export function opened(row, width, { store, params, query }) {
  const place = placeOf(row);
  if (!query.getAll("open").includes(place)) return null;
  return h("tr", { key: `whole ${place}`, class: "whole" }, h("td", { colspan: width }, content(place, store, params)));
}

/** An open record that is not on the page, as in a link to a page that has moved on. */
export function alone(place, { store, params }) {
  return h("div", { key: `alone ${place}`, class: "board" }, content(place, store, params));
}

function content(place, store, params) {
  const found = store.whole?.get(`${params.topic} ${place}`) ?? {};
  if (found.error) return trouble(found.error);
  return found.record ? whole(found.record) : h("p", { class: "quiet" }, "Reading…");
}

/** A time, which breaks before the hour if it is wider than its place. */
function time(text) {
  return h("time", { datetime: text }, text.split(/(?<=T)/).map((part) => [h("span", { class: "nowrap" }, part), h("wbr")]));
}

function whole(record) {
  return h("div", { class: "record" },
    h("div", { class: "row" },
      facts([
        ["Partition", count(record.partition)],
        ["Offset", count(record.offset)],
        ["Time", record.timestamp ? time(record.timestamp) : "none"],
        ["State", badge(record.held_back ? "held_back" : (record.state ?? "unknown"))],
        ["Transaction", record.transaction],
        ["Size", bytes(record.bytes)],
      ])),
    h("dl", { class: "fields" }, record.fields.map((each) => h("div", { key: each.name },
      h("dt", {}, each.name, " ", h("code", { class: "quiet" }, each.type)),
      h("dd", {}, each.text === null
        ? h("span", { class: "quiet" }, "null")
        : h("pre", { tabindex: "0", role: "region", "aria-label": each.name }, printable(each.text)),
      each.omitted > 0 && h("p", { class: "quiet" }, `${counted(each.omitted, "more character")}. The code below reads all of them.`))))),
    record.json === null ? h("p", { class: "quiet" }, "The record is too long to be copied here.") : h("div", { class: "buttons" }, copyButton("record as JSON", record.json)));
}
