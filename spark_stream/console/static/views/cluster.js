// The cluster: problems, brokers, disks.

import { actionButton } from "../actions.js";
import { chart } from "../chart.js";
import { h } from "../dom.js";
import { ago, bytes, count, counted, duration, percent, rate } from "../format.js";
import { badge, empty, facts, heading, link, listed, name, notice, section, shownPart, table } from "../widgets.js";

export const title = () => "Cluster";
export const parts = ["cluster", "topics", "history"];

export function render({ store }) {
  const rate_ = (store.parts.topics?.value?.topics ?? []).reduce((sum, each) => sum + each.records_per_s, 0);
  return [
    heading("Cluster", actionButton(store.session, "elect-preferred", "Elect preferred leaders")),
    shownPart(store, "problems", judged),
    shownPart(store, "cluster", (cluster) => [
      facts([
        ["Brokers alive", `${cluster.brokers.filter((each) => each.alive).length} of ${cluster.brokers.length}`],
        ["Controller", cluster.controller === null ? "none" : `broker ${cluster.controller}`],
        ["Topics", count(cluster.topics)],
        ["Partitions", count(cluster.partitions)],
        ["Moving", cluster.moving ? counted(cluster.moving, "partition") : null],
        ["Written", [rate(rate_), " ", sparkline(store.parts.topics?.value?.written ?? [])]],
        ["Release", [...new Set(cluster.brokers.map((each) => each.release))].sort().join(", ")],
        ["Cluster id", h("code", {}, cluster.cluster_id)],
      ]),
      lastDay(store.parts.history?.value),
      section("Brokers", brokers(cluster)),
      section("Disks", disks(cluster)),
      delayed(cluster),
    ]),
  ];
}

const FIGURES = { alive: ["Brokers alive", count], out_of_sync: ["Replicas out of sync", count], offline: ["Partitions without a leader", count],
  records_per_s: ["Records/s", count], lag: ["Reader lag in records", count], oldest_open_s: ["Oldest open transaction", duration] };

/** The curves of the last day. */
function lastDay(history) {
  if (!history) return null;
  return section("Last day", facts(Object.entries(FIGURES).map(([name, [words, format]]) =>
    [words, chart(history.figures[name], history.end_ms, history.step_ms, format)])));
}

const ABOUT = { cluster: "the brokers", topics: "the topics", transactions: "transactions", consumers: "readers" };

/** The problems. "No problems" is shown only if all parts could be judged. */
function judged({ found, unjudged }) {
  const unknown = Object.entries(unjudged);
  const gaps = unknown.length > 0 && h("div", { class: "notice wait", key: "gaps" },
    h("p", {}, `${found.length ? "There may be more problems" : "Problems cannot be ruled out"}: `,
      unknown.map(([name, why]) => `no data about ${ABOUT[name]} (${why})`).join(", "), "."));
  if (found.length || gaps) return [notice(found), gaps];
  return h("div", { class: "notice good" }, h("p", {}, h("strong", {}, "No problems."),
    " All brokers answer, all replicas are in sync, no disk is filling up, no transaction holds back readers for long, and no reader is stalled or falls behind."));
}

/** The last minutes as a curve. @param {Array<[number, number]>} samples [seconds ago, value] */
function sparkline(samples) {
  if (samples.length < 3) return null;
  const [longest, most] = [samples[0][0], Math.max(1, ...samples.map(([, value]) => value))];
  const points = samples.map(([ago_, value]) => `${(100 * (1 - ago_ / longest)).toFixed(1)},${(19 - (18 * value) / most).toFixed(1)}`).join(" ");
  const words = `Over the last ${duration(longest)}: ${count(Math.round(Math.min(...samples.map(([, value]) => value))))} to ${count(Math.round(most))} records/s`;
  return h("svg", { class: "sparkline", viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img", "aria-label": words }, h("title", {}, words), h("polyline", { points }));
}

function brokers(cluster) {
  if (!cluster.brokers.length) return empty("No broker has registered yet.", "Start one: isolog broker start");
  const columns = [["Broker", ""], ["State", ""], ["Response time", "number"], ["Rack", ""], ["Leaders", "number"], ["In sync", "number"],
    ["Memory", "number"], ["Uptime", "number"], ["Files checked", ""]];
  return table("Brokers of the cluster", columns, cluster.brokers.map((each) => {
    const status = each.status;
    const state = !each.alive ? "dead" : each.is_silent ? "silent" : each.is_slow ? "slow" : "alive";
    return h("tr", { key: each.id },
      h("th", { scope: "row" }, name(each.id), " ", h("span", { class: "quiet" }, each.address)),
      h("td", {}, badge(state), each.state !== "active" && " leaving", each.id === cluster.controller && h("span", { class: "tag" }, "controller")),
      h("td", { class: `number${each.is_slow ? " bad-text" : ""}` }, each.alive ? milliseconds(each.answers.median_s) : "–"),
      h("td", {}, each.rack ?? "–"),
      h("td", { class: "number" }, count(each.leaders)),
      h("td", { class: `number${each.in_sync < each.replicas ? " bad-text" : ""}` }, `${count(each.in_sync)} of ${count(each.replicas)}`),
      h("td", { class: "number" }, bytes(status?.memory)),
      h("td", { class: "number" }, status ? duration(status.uptime_s) : "–"),
      h("td", {}, ago(status?.checked_ms)));
  }));
}

function milliseconds(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${Math.max(1, Math.round(1000 * seconds))} ms` : `${seconds.toFixed(1)} s`;
}

function disks(cluster) {
  const columns = [["Broker", ""], ["Disk", ""], ["Free", "number"], ["Full in", "number"], ["Logs", "number"], ["Fastest growing or largest topics", ""]];
  return table("Disks of the brokers", columns, cluster.brokers.filter((each) => each.status?.disk_total).map((each) => {
    const soon = each.full_in_s !== null && each.full_in_s < 1800;
    const used = 1 - each.status.disk_free / each.status.disk_total;
    return h("tr", { key: each.id },
      h("th", { scope: "row" }, name(`Broker ${each.id}`)),
      h("td", {}, h("meter", { class: "disk", min: "0", max: "1", low: "0.8", high: "0.9", optimum: "0", value: used.toFixed(3), "aria-label": `${percent(used)} full` }), ` ${percent(used)} full`),
      h("td", { class: "number" }, bytes(each.status.disk_free)),
      h("td", { class: `number${soon ? " bad-text" : ""}` }, each.full_in_s === null ? "–" : each.full_in_s < 172_800 ? duration(each.full_in_s) : "days"),
      h("td", { class: "number" }, bytes(each.status.log_bytes)),
      h("td", { class: "list" }, each.on_disk.length ? listed(each.on_disk.map((on) => [link(`/topics/${encodeURIComponent(on.topic)}`, on.topic), ` ${bytes(on.size)}${on.bytes_per_s ? `, +${bytes(on.bytes_per_s)}/s` : ""}`])) : "–"));
  }));
}

function delayed(cluster) {
  const rows = cluster.brokers.flatMap((broker) => Object.entries(broker.status?.principals ?? {})
    .filter(([, use]) => use.write_delayed_s > 0 || use.read_delayed_s > 0)
    .map(([principal, use]) => h("tr", { key: `${broker.id} ${principal}` }, h("th", { scope: "row" }, principal), h("td", {}, broker.id),
      h("td", { class: "number" }, `${use.write_delayed_s.toFixed(1)} s`), h("td", { class: "number" }, `${use.read_delayed_s.toFixed(1)} s`),
      h("td", { class: "number" }, count(use.connections)))));
  return rows.length > 0 && section("Delayed by quotas",
    table("Principals that quotas have delayed", [["Principal", ""], ["Broker", ""], ["Writes", "number"], ["Reads", "number"], ["Connections", "number"]], rows));
}
