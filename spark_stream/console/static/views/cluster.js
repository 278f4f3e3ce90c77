// The cluster: what is amiss, its brokers, their disks.

import { h } from "../dom.js";
import { ago, bytes, count, counted, duration, percent } from "../format.js";
import { badge, empty, facts, heading, section, sentence, shownPart, table } from "../widgets.js";

export const title = () => "Cluster";
export const parts = ["cluster", "topics"];

export function render({ store }) {
  const rate = (store.parts.topics?.value?.topics ?? []).reduce((sum, each) => sum + each.records_per_s, 0);
  return [
    heading("Cluster"),
    shownPart(store.parts.cluster, (cluster) => [
      problems(cluster),
      facts([
        ["Brokers alive", `${cluster.brokers.filter((each) => each.alive).length} of ${cluster.brokers.length}`],
        ["Controller", cluster.controller === null ? "none" : `broker ${cluster.controller}`],
        ["Topics", count(cluster.topics)],
        ["Partitions", count(cluster.partitions)],
        ["Moving", cluster.moving ? counted(cluster.moving, "partition") : null],
        ["Written", `${count(Math.round(rate))} records/s`],
        ["Release", [...new Set(cluster.brokers.map((each) => each.release))].sort().join(", ")],
        ["Cluster id", h("code", {}, cluster.cluster_id)],
      ]),
      section("Brokers", brokers(cluster)),
      delayed(cluster),
    ]),
  ];
}

function problems(cluster) {
  if (!cluster.problems.length) {
    return h("div", { class: "notice good" }, h("p", {}, h("strong", {}, "Nothing is amiss."), " All partitions have a leader, and all replicas are in sync."));
  }
  return h("div", { class: "notice bad", role: "group", "aria-label": "What is amiss" },
    h("h2", {}, "What is amiss"),
    h("ul", {}, cluster.problems.map((each) => h("li", {},
      h("strong", {}, sentence(each.message)),
      each.names.some((name) => !each.message.includes(name)) && h("span", { class: "quiet" }, ` ${each.names.map(place).join(", ")}${each.count > each.names.length ? ", …" : ""}`)))));
}

function place(name) {
  return /\/\d+$/.test(name) ? name : `broker ${name}`;
}

function brokers(cluster) {
  if (!cluster.brokers.length) return empty("No broker has registered yet.", "Start one: isolog broker start.");
  const columns = [["Broker", ""], ["State", ""], ["Rack", ""], ["Leads", "number"], ["In sync", "number"],
    ["Disk", ""], ["Log", "number"], ["Memory", "number"], ["Up", "number"], ["Files checked", ""]];
  return table("Brokers of the cluster", columns, cluster.brokers.map((each) => {
    const status = each.status;
    return h("tr", { key: each.id },
      h("th", { scope: "row" }, `${each.id} `, h("span", { class: "quiet" }, each.address)),
      h("td", {}, badge(each.alive ? "alive" : "dead"), each.state !== "active" && " leaving",
        each.id === cluster.controller && h("span", { class: "tag" }, "controller"), each.alive && !status && " does not answer"),
      h("td", {}, each.rack ?? "–"),
      h("td", { class: "number" }, count(each.leaders)),
      h("td", { class: `number${each.in_sync < each.replicas ? " bad-text" : ""}` }, `${count(each.in_sync)} of ${count(each.replicas)}`),
      h("td", {}, disk(status)),
      h("td", { class: "number" }, bytes(status?.log_bytes)),
      h("td", { class: "number" }, bytes(status?.memory)),
      h("td", { class: "number" }, status ? duration(status.uptime_s) : "–"),
      h("td", {}, ago(status?.checked_ms)));
  }));
}

function disk(status) {
  if (!status?.disk_total) return "–";
  const used = 1 - status.disk_free / status.disk_total;
  const words = `${percent(used)} full, ${bytes(status.disk_free)} free`;
  return [h("meter", { class: "disk", min: "0", max: "1", low: "0.8", high: "0.9", optimum: "0", value: used.toFixed(3), "aria-label": words }), ` ${words}`];
}

function delayed(cluster) {
  const rows = cluster.brokers.flatMap((broker) => Object.entries(broker.status?.principals ?? {})
    .filter(([, use]) => use.write_delayed_s > 0 || use.read_delayed_s > 0)
    .map(([name, use]) => h("tr", { key: `${broker.id} ${name}` }, h("th", { scope: "row" }, name), h("td", {}, broker.id),
      h("td", { class: "number" }, `${use.write_delayed_s.toFixed(1)} s`), h("td", { class: "number" }, `${use.read_delayed_s.toFixed(1)} s`),
      h("td", { class: "number" }, count(use.connections)))));
  return rows.length > 0 && section("Delayed by quotas",
    table("Whom quotas have delayed", [["Principal", ""], ["Broker", ""], ["Writes", "number"], ["Reads", "number"], ["Connections", "number"]], rows));
}
