// All lakes, and one lake with its topics, tables and last cuts.

import { get } from "../api.js";
import { h } from "../dom.js";
import { absolute, ago, bytes, count, counted, span } from "../format.js";
import { badge, breakable, empty, facts, heading, link, section, sentence, shownPart, table, trouble } from "../widgets.js";

const href = (name) => `/lakes/${encodeURIComponent(name)}`;
const toTopic = (name) => link(`/topics/${encodeURIComponent(name)}`, name);

/** The sum of the lags of partitions, null if one is unknown. */
function lagOf(partitions) {
  return partitions.reduce((total, each) => (total === null || each.lag === null ? null : total + each.lag), 0);
}

const lag = (partitions) => (lagOf(partitions) === null ? "unknown" : counted(lagOf(partitions), "record"));
const allOf = (lake) => lake.topics.flatMap((each) => each.partitions);
const worker = (lake) => [lake.worker, lake.recorded_ms !== null && [", last report ", ago(lake.recorded_ms)]];

/** The states of `isolog lake status`, from the brokers alone. */
function state(lake) {
  if (lake.worker === "stopped") return badge("worker_stopped");
  const behind = lagOf(allOf(lake));
  return badge(behind === null ? "unknown" : behind === 0 ? "up_to_date" : lake.worker === "absent" ? "no_worker" : "catching_up");
}

export const lakes = {
  title: () => "Lakes",
  parts: ["lakes"],
  render: ({ store }) => [
    heading("Lakes"),
    shownPart(store, "lakes", (all) => (all.length ? list(all) : empty("There are no lakes that you have permissions for.", "Create one: isolog lake create shop --topics orders --location lake/"))),
  ],
};

function list(all) {
  const columns = [["Lake", ""], ["State", ""], ["Lag", "number"], ["Freshness", "number"], ["Worker", ""], ["Topics", ""], ["Location", ""]];
  return table("Lakes", columns, all.map((each) => h("tr", { key: each.name },
    h("th", { scope: "row" }, link(href(each.name), each.name)), h("td", {}, state(each)),
    h("td", { class: "number" }, lag(allOf(each))), h("td", { class: "number" }, span(each.freshness_ms)),
    h("td", {}, worker(each)),
    h("td", { class: "list" }, each.topics.map((one) => one.topic).join(", "), each.omitted > 0 && ` and ${counted(each.omitted, "hidden topic")}`),
    h("td", { class: "list" }, h("code", {}, each.location)))));
}

export const lake = {
  title: (params) => params.lake,
  parts: ["lakes"],
  load,
  render: ({ store, params }) => [
    heading(params.lake, null, link("/lakes", "Lakes")),
    shownPart(store, "lakes", (all) => {
      const found = all.find((each) => each.name === params.lake);
      return found ? shown(found, store) : empty(`Unknown lake ${params.lake}.`, "It may have been dropped, or you lack the permission to see it.");
    }),
  ],
};

/** Read the tables and the cuts from the location, once for each visit. */
async function load({ store, params, rerender }) {
  const found = (store.lake = { name: params.lake });
  try {
    found.value = await get("/api/lake", { lake: params.lake });
  } catch (error) {
    found.error = error;
  }
  rerender();
}

function shown(each, store) {
  const of = store.lake?.name === each.name ? store.lake : {};
  return [
    each.stopped && h("div", { class: "notice bad" }, h("p", {}, h("strong", {}, "The worker stopped. "), sentence(each.stopped), " ", each.stopped_hint)),
    facts([
      ["State", state(each)],
      ["Lag", lag(allOf(each))],
      ["Freshness", span(each.freshness_ms)],
      ["Worker", worker(each)],
      ["Created", ago(each.created_ms)],
      ["Location", breakable(each.location)],
      ["Hidden topics", each.omitted > 0 && count(each.omitted)],
    ]),
    section("Offsets", offsets(each)),
    section("Tables", of.error ? trouble(of.error) : of.value ? tables(of.value.tables) : h("p", { class: "quiet loading" }, "Reading the location…")),
    of.value && section("Last cuts", of.value.cuts.length ? cuts(of.value.cuts) : empty("No cut was recorded yet.")),
  ];
}

function offsets(each) {
  const columns = [["Topic", ""], ["Partition", "number"], ["Log start", "number"], ["In the table up to", "number"], ["LSO", "number"], ["Lag", "number"]];
  return table(`Offsets of ${each.name}`, columns, each.topics.flatMap((one) => (one.partitions.length
    ? one.partitions.map((at) => h("tr", { key: `${one.topic}/${at.partition}` },
      h("th", { scope: "row" }, toTopic(one.topic)), h("td", { class: "number" }, at.partition), h("td", { class: "number" }, count(at.log_start)),
      h("td", { class: "number" }, at.recorded === null ? "none" : count(at.recorded)), h("td", { class: "number" }, at.last_stable === null ? "unknown" : count(at.last_stable)),
      h("td", { class: "number" }, at.lag === null ? "unknown" : count(at.lag))))
    : [h("tr", { key: one.topic }, h("th", { scope: "row" }, one.topic), h("td", { colspan: "5", class: "bad-text" }, "It was deleted, or its leaders do not answer."))])));
}

function tables(all) {
  const columns = [["Table", ""], ["Version", "number"], ["Files", "number"], ["Size", "number"], ["Problem", ""]];
  return table("Tables in the location", columns, all.map((each) => h("tr", { key: each.topic },
    h("th", { scope: "row" }, toTopic(each.topic)), h("td", { class: "number" }, each.version < 0 ? "none" : count(each.version)),
    h("td", { class: "number" }, count(each.files)), h("td", { class: "number" }, bytes(each.size)),
    h("td", { class: each.problem && "bad-text" }, each.problem ? [sentence(each.problem), " ", each.hint] : "none"))));
}

function cuts(all) {
  const columns = [["Cut", "number"], ["Recorded", ""], ["Versions", ""]];
  return table("Last cuts", columns, all.map((each) => h("tr", { key: each.number },
    h("th", { scope: "row", class: "number" }, each.number), h("td", { title: absolute(each.time_ms) }, ago(each.time_ms)),
    h("td", {}, Object.entries(each.versions).sort().map(([topic, version]) => `${topic}@${version}`).join(", ")))));
}
