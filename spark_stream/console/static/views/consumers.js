// Queries and consumers with their state and lag, and the sinks of queries.

import { actionButton } from "../actions.js";
import { h } from "../dom.js";
import { ago, count, counted } from "../format.js";
import { badge, breakable, empty, facts, heading, link, listed, name, notice, problemsOf, section, shownPart, table } from "../widgets.js";

export const consumers = {
  title: () => "Consumers",
  parts: ["consumers"],
  render: ({ store }) => [
    heading("Queries and consumers"),
    shownPart(store, "consumers", (value) => [
      section("Readers", value.consumers.length ? readers(value.consumers, store) : empty("There are no named readers.", "Give a query the option “consumer”, or a client's consumer a name, to list it here.")),
      section("Sinks", value.sinks.length ? sinks(value.sinks) : empty("There are no sinks.", "The sink of a Spark query appears with its first batch.")),
    ]),
  ],
};

/** "query", "consumer" or "group". */
const kind = (each) => (each.group ? "group" : each.kind === "client" ? "consumer" : each.kind);

function state(each) {
  if (each.state === "waiting_at_lso" && each.waits_for.length) return [badge("waiting_at_lso"), " for ", listed(each.waits_for.map((one) => link("/transactions", name(one.transactional_id) ?? "a transaction that is not in your list")))];
  return [badge(each.state === "empty" ? "no_members" : each.state), each.state === "catching_up" && each.trend === "grows" ? [" ", badge("grows")] : null];
}

/** A remark that a group lost a member, while this is listed as a problem. */
function lostMember(each, store) {
  const key = `lost ${kind(each)} ${each.name}`;
  return problemsOf(store, (one) => one.key === key).length ? h("span", { class: "wait-text" }, " lost a member") : null;
}

function readers(all, store) {
  const order = ["gone", "stalled", "waiting_at_lso", "catching_up", "running", "empty", "stopped"];
  const sorted = [...all].sort((one, other) => order.indexOf(one.state) - order.indexOf(other.state) || one.name.localeCompare(other.name));
  const columns = [["Name", ""], ["Kind", ""], ["State", ""], ["Lag", "number"], ["Held back", "number"], ["Isolation", ""], ["Reads", ""], ["Last report", ""], ["Owner", ""]];
  return table("Named readers", columns, sorted.map((each) => h("tr", { key: `${each.kind} ${each.name}` },
    h("th", { scope: "row" }, link(`/consumers/${encodeURIComponent(each.name)}`, name(each.name))),
    h("td", {}, kind(each)), h("td", {}, state(each), lostMember(each, store)),
    h("td", { class: "number" }, each.lag === null ? "–" : counted(each.lag, "record")),
    h("td", { class: "number" }, each.held_back ? counted(each.held_back, "record") : "–"),
    h("td", {}, each.isolation ?? "unknown"),
    h("td", {}, [...new Set(each.partitions.map((at) => at.topic))].join(", ") || "–"),
    h("td", {}, ago(each.recorded_ms)), h("td", {}, each.principal || "–"))));
}

function sinks(all) {
  const columns = [["Sink", ""], ["Query", ""], ["Last transaction", ""], ["Last committed batch", "number"], ["Last used", ""]];
  return table("Sinks of queries", columns, all.map((each) => h("tr", { key: each.transactional_id },
    h("th", { scope: "row" }, name(each.transactional_id)), h("td", { title: each.query }, name(each.query_name || each.query)), h("td", {}, badge(each.state)),
    h("td", { class: "number" }, each.committed_batch < 0 ? "none" : count(each.committed_batch)), h("td", {}, ago(each.last_used_ms)))));
}

export const consumer = {
  title: (params) => params.consumer,
  parts: ["consumers"],
  render: ({ store, params }) => [
    heading(name(params.consumer), resetButton(store, params.consumer), link("/consumers", "Consumers")),
    shownPart(store, "consumers", (value) => {
      const found = value.consumers.filter((each) => each.name === params.consumer);
      const href = `/consumers/${encodeURIComponent(params.consumer)}`;
      const holders = new Set(found.flatMap((each) => each.waits_for.map((one) => `holds ${one.transactional_id} ${one.number}`)));
      if (found.length) return [notice(problemsOf(store, (each) => each.href === href || holders.has(each.key))), found.map(shown)];
      return empty(`Unknown consumer ${params.consumer}.`, "It may have been deleted, or you lack the permission to see it.");
    }),
  ],
};

/** A button for positions that brokers store. Those of a query are in its checkpoint. */
function resetButton(store, name) {
  const found = (store.parts.consumers?.value?.consumers ?? []).filter((each) => each.name === name);
  const isStored = found.length > 0 && found.every((each) => each.kind !== "query");
  return isStored && actionButton(store.session, "reset-consumer", "Reset", { consumer: name });
}

/** What a query selects, such as "subscribe: flights". */
function selected(text) {
  try {
    return Object.entries(JSON.parse(text)).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
  } catch {
    return text;
  }
}

const TITLES = { query: "Spark query", consumer: "Client consumer", group: "Consumer group" };

function members(group) {
  const columns = [["Member", ""], ["Reads", ""], ["Isolation", ""], ["Session", "number"], ["Partitions", "number"], ["Owner", ""]];
  return table("Members", columns, group.members.map((each) => h("tr", { key: each.id },
    h("th", { scope: "row" }, name(each.id)), h("td", {}, each.topics.join(", ")), h("td", {}, each.isolation),
    h("td", { class: "number" }, `${each.session_ms / 1000} s`), h("td", { class: "number" }, count(each.partitions)), h("td", {}, each.principal || "–"))));
}

function shown(each) {
  const columns = [["Topic", ""], ["Partition", "number"], ["Position", "number"], ["End", "number"], ["Lag", "number"], ["Held back", "number"],
    ...(each.group ? [["Member", ""]] : [])];
  return section(TITLES[kind(each)],
    facts([
      ["State", state(each)],
      ["Lag", each.lag === null ? "unknown" : counted(each.lag, "record")],
      ["Held back", each.held_back ? counted(each.held_back, "record") : "none"],
      ["Isolation", each.isolation ?? "unknown (the lag is counted to the log end)"],
      ["Reads", breakable(selected(each.selection))],
      ["Starting offsets", each.kind === "query" ? breakable(each.starting || "not pinned") : null],
      ["First started", each.started_ms === null ? null : ago(each.started_ms)],
      ["Last report", each.recorded_ms === null ? null : ago(each.recorded_ms)],
      ["Owner", each.principal || null],
      ["Members", each.group ? (each.group.members.length || "none") : null],
    ]),
    each.group && each.group.members.length ? members(each.group) : null,
    each.partitions.length
      ? table(`Positions of ${each.name}`, columns, each.partitions.map((at) => h("tr", { key: `${at.topic}/${at.partition}` },
        h("th", { scope: "row" }, link(`/topics/${encodeURIComponent(at.topic)}/${at.partition}`, at.topic)), h("td", { class: "number" }, at.partition),
        h("td", { class: "number" }, count(at.offset)), h("td", { class: "number" }, at.end === null ? "unknown" : count(at.end)), h("td", { class: "number" }, count(at.lag)), h("td", { class: "number" }, count(at.held_back)),
        each.group ? h("td", {}, at.member ? name(at.member) : "none") : null)))
      : empty("No position reported yet."));
}
