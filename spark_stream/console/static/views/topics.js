// All topics, and one topic with its partitions, columns and settings.

import { actionButton } from "../actions.js";
import { h } from "../dom.js";
import { bytes, count, counted, rate, span } from "../format.js";
import { smallLine } from "../line.js";
import { badge, empty, facts, heading, link, listed, notice, problemsOf, section, sentence, short, shownPart, table } from "../widgets.js";

export const topics = {
  title: () => "Topics",
  parts: ["topics"],
  render: ({ store, query, replace }) => [
    heading("Topics", h("div", { class: "row start" }, h("label", { class: "search" }, h("span", { class: "hidden" }, "Find a topic"),
      h("input", { type: "search", id: "find", placeholder: "Find a topic", value: query.get("find") ?? "", oninput: (event) => replace({ find: event.target.value }) })),
      actionButton(store.session, "create-topic", "Create a topic"))),
    shownPart(store, "topics", (value) => found(store, value.topics, (query.get("find") ?? "").toLowerCase())),
  ],
};

/** The problems of a topic. */
const about = (store, name) => problemsOf(store, (each) => each.places.some((place) => isOf(place, name)));
const isOf = (place, topic) => place.slice(0, place.lastIndexOf("/")) === topic;

/** The problems of a topic, with their causes, and without places of other topics. */
function withCauses(store, topic) {
  const own = about(store, topic);
  return problemsOf(store, (each) => own.includes(each) || own.some((one) => one.cause === each.key))
    .map((each) => ({ ...each, places: each.places.filter((place) => isOf(place, topic)) }));
}

function found(store, all, wanted) {
  if (!all.length) return empty("There are no topics that you have permissions for.", "Create one: isolog topic create flights --partitions 4");
  const some = all.filter((each) => each.name.toLowerCase().includes(wanted));
  if (!some.length) return empty(`No topic name contains “${wanted}”.`, "Clear the search to see all topics.");
  const columns = [["Topic", ""], ["Partitions led", "number"], ["Records", "number"], ["Size", "number"], ["Written", "number"], ["Open transactions", "number"], ["", ""]];
  return table("Topics", columns, some.map((each) => h("tr", { key: each.name },
    h("th", { scope: "row" }, link(`/topics/${encodeURIComponent(each.name)}`, each.name), about(store, each.name).length > 0 && [" ", badge("problem", about(store, each.name).map((one) => one.message).join(", "))]),
    h("td", { class: "number" }, count(each.led_partitions)),
    h("td", { class: "number" }, count(each.records)),
    h("td", { class: "number" }, bytes(each.size)),
    h("td", { class: "number" }, rate(each.records_per_s)),
    h("td", { class: "number" }, count(each.open_transactions)),
    h("td", {}, link(`/topics/${encodeURIComponent(each.name)}/records`, "Records", h("span", { class: "hidden" }, ` of ${each.name}`))))));
}

export const topic = {
  title: (params) => params.topic,
  parts: [],
  topic: (params) => params.topic,
  render: ({ store, params }) => [
    heading(params.topic, store.parts.topic?.error?.code !== "UNKNOWN_TOPIC" && h("div", { class: "row start" }, link(`/topics/${encodeURIComponent(params.topic)}/records`, "Show records"), changes(store.session, params.topic)), link("/topics", "Topics")),
    shownPart(store, "topic", (found) => [notice(withCauses(store, params.topic)), shown(found)]),
  ],
};

function changes(session, topic) {
  return h("div", { class: "buttons" }, [["alter-topic", "Alter"], ["trim-topic", "Trim"], ["elect-preferred", "Elect leaders"], ["delete-topic", "Delete", "danger"]]
    .map(([action, words, style]) => actionButton(session, action, words, { topic }, style)));
}

function shown(found) {
  const live = found.partitions.map((each) => each.live).filter((each) => each !== null);
  const sum = (name) => live.reduce((total, each) => total + each[name], 0);
  return [
    found.warning && h("div", { class: "notice wait" }, h("p", {}, sentence(found.warning))),
    facts([
      ["Partitions", count(found.partitions.length)],
      ["Replication factor", count(found.replication_factor)],
      ["Records", count(sum("log_end") - sum("log_start"))],
      ["Size at leaders", bytes(sum("size"))],
      ["Written", rate(sum("records_per_s"))],
      ["Partitioned by", found.partition_by.length ? found.partition_by.join(", ") : found.is_typed ? "round-robin" : "key, else round-robin"],
      ["Lakes", found.lakes?.length ? listed(found.lakes.map((each) => link(`/lakes/${encodeURIComponent(each.name)}`, each.name))) : null],
      ["Schema altered", found.schema_version ? counted(found.schema_version, "time") : "never"],
    ]),
    section("Partitions", legend(), partitions(found)),
    section("Columns", columns(found)),
    section("Settings", settings(found)),
  ];
}

/** The legend of the colours of a line. */
export function legend() {
  const keys = [["stable", "visible to read_committed"], ["held", "replicated, held back by open transactions"], ["unreplicated", "not replicated yet"]];
  return h("ul", { class: "legend" }, keys.map(([style, words]) => h("li", {},
    h("svg", { class: "swatch", "aria-hidden": "true" }, h("rect", { width: "100%", height: "100%", class: style })), words)));
}

function partitions(found) {
  const name = encodeURIComponent(found.name);
  const headings = [["Partition", ""], ["Leader", ""], ["In sync", ""], ["Log", "line-column"], ["Start", "number"], [short("LSO"), "number"], [short("HW"), "number"], [short("LEO"), "number"], ["Written", "number"], ["Size", "number"]];
  return table(`Partitions of ${found.name}`, headings, found.partitions.map((each) => {
    const live = each.live;
    const lacking = each.replicas.filter((broker) => !each.isr.includes(broker));
    return h("tr", { key: each.partition },
      h("th", { scope: "row" }, link(`/topics/${name}/${each.partition}`, each.partition, h("span", { class: "hidden" }, " as a line"))),
      h("td", {}, each.leader === null ? "none" : `broker ${each.leader}`),
      h("td", { class: lacking.length ? "bad-text" : null }, `${each.isr.length} of ${each.replicas.length}`, lacking.length > 0 && ` (without ${lacking.join(", ")})`),
      live
        ? [h("td", { class: "line-column" }, smallLine(live)),
          ...[live.log_start, live.last_stable, live.high_watermark, live.log_end].map((offset) => h("td", { class: "number" }, count(offset))),
          h("td", { class: "number" }, rate(live.records_per_s)), h("td", { class: "number" }, bytes(live.size))]
        : h("td", { colspan: "7", class: "bad-text" }, each.error ? sentence(each.error.message) : "Its leader does not answer."));
  }));
}

function columns(found) {
  return table(`Columns of ${found.name}`, [["Column", ""], ["Type", ""], ["Null", ""], ["", ""]], found.columns.map((each) => h("tr", { key: each.name },
    h("th", { scope: "row" }, each.name), h("td", {}, h("code", {}, each.type)), h("td", {}, each.nullable ? "allowed" : "not allowed"),
    h("td", {}, found.partition_by.includes(each.name) && h("span", { class: "tag" }, "partition key"), each.added && h("span", { class: "tag" }, "added later")))));
}

function settings(found) {
  return table(`Settings of ${found.name}`, [["Setting", ""], ["Value", ""]], Object.entries(found.config).sort().map(([name, value]) => h("tr", { key: name },
    h("th", { scope: "row" }, h("code", {}, name)), h("td", {}, setting(name, value)))));
}

/** The formatted value of a setting. The raw number is shown on hover. */
function setting(name, value) {
  if (value === "") return "–";
  if (value === "-1") return h("span", { title: value }, "no limit");
  if (!/^\d+$/.test(value)) return value;
  const words = name.endsWith(".bytes") ? bytes(Number(value)) : name.endsWith(".ms") ? span(Number(value)) : null;
  return words === null ? count(Number(value)) : h("span", { title: value }, words);
}
