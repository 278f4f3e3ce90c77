// The page: the routes of the views, the data of a view, and the frame around it.

import { follow, get, post } from "./api.js";
import { h, patch } from "./dom.js";
import { forgetPermissions } from "./permissions.js";
import { announce, remedy } from "./widgets.js";
import * as cluster from "./views/cluster.js";
import { consumer, consumers } from "./views/consumers.js";
import * as failovers from "./views/failovers.js";
import { lake, lakes } from "./views/lakes.js";
import * as login from "./views/login.js";
import * as partition from "./views/partition.js";
import * as records from "./views/records.js";
import { topic, topics } from "./views/topics.js";
import * as transactions from "./views/transactions.js";

const ROUTES = [
  [/^\/$/, cluster, []],
  [/^\/topics$/, topics, []],
  [/^\/topics\/([^/]+)$/, topic, ["topic"]],
  [/^\/topics\/([^/]+)\/records$/, records, ["topic"]],
  [/^\/topics\/([^/]+)\/(\d+)$/, partition, ["topic", "partition"]],
  [/^\/consumers$/, consumers, []],
  [/^\/consumers\/([^/]+)$/, consumer, ["consumer"]],
  [/^\/lakes$/, lakes, []],
  [/^\/lakes\/([^/]+)$/, lake, ["lake"]],
  [/^\/transactions$/, transactions, []],
  [/^\/failovers$/, failovers, []],
];
const NAVIGATION = [["/", "Cluster", "c"], ["/topics", "Topics", "t"], ["/consumers", "Consumers", "q"], ["/transactions", "Transactions", "x"], ["/failovers", "Failovers", "f"], ["/lakes", "Lakes", "l"]];
const NOWHERE = {
  title: () => "Not found",
  parts: [],
  render: () => h("div", { class: "empty" }, h("h1", { id: "title", tabindex: "-1" }, "Page not found"), h("p", {}, h("a", { href: "/" }, "Go to the cluster"))),
};
const SINGLE_KEYS = "isolog single keys";
const THEME = "isolog theme";
const ACTIVE_MS = 60_000;

/** All that the page knows. `parts`: the latest of the board, by name. */
const store = { session: null, parts: {}, connection: "connecting", outcome: null };
let view = NOWHERE;
let params = {};
let stop = () => {};
let lastActive = 0;

// -- views ---------------------------------------------------------------------------------------

function context() {
  return { store, params, query: new URLSearchParams(location.search), go, replace, rerender, begin };
}

/** Go to an address of the console. */
function go(href) {
  if (href !== location.pathname + location.search) history.pushState(null, "", href);
  open();
}

/** Change fields of the address, without a step back. */
function replace(fields) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(fields)) value ? query.set(name, value) : query.delete(name);
  history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
  rerender();
}

function open({ focus = true } = {}) {
  if (store.session === null || (store.session.needs_login && !store.session.is_open)) return rerender();
  const before = view;
  const samePath = open.path === location.pathname;
  open.path = location.pathname;
  view = NOWHERE;
  for (const [pattern, found, names] of ROUTES) {
    const match = pattern.exec(location.pathname);
    if (match) {
      view = found;
      params = Object.fromEntries(names.map((name, at) => [name, decodeURIComponent(match[at + 1])]));
      break;
    }
  }
  const name = view.title(params);
  document.title = `${name} – isolog`;
  if (!samePath || before !== view) {
    store.outcome = null;
    delete store.parts.topic;
    stop();
    stop = follow(["problems", ...view.parts], view.topic?.(params) ?? null, onPart, onState);
  }
  view.load?.(context());
  draw();
  if (focus && !samePath) {
    window.scrollTo(0, 0);
    document.getElementById("title")?.focus({ preventScroll: true });
    announce(name);
  }
}

function onPart(name, part) {
  store.parts[name] = part;
  rerender();
}

function onState(state) {
  if (state === "over") return over();
  if (state !== store.connection) announce(state === "live" ? "Connected." : "Connection lost.");
  store.connection = state;
  rerender();
}

/** The stream has ended: the session may be over, or the server may have stopped. */
async function over() {
  stop();
  stop = () => {};
  open.path = undefined;
  store.connection = "lost";
  try {
    store.session = await get("/api/session");
    store.over = store.session.needs_login && !store.session.is_open;
    if (!store.over) setTimeout(() => open({ focus: false }), 1000);
    else store.parts = {};
  } catch {
    setTimeout(over, 2000);
  }
  rerender();
}

// -- drawing -------------------------------------------------------------------------------------

let isDue = false;

function rerender() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

function draw() {
  const app = document.getElementById("app");
  if (store.session === null) return patch(app, [h("main", { id: "main", class: "login" }, h("p", {}, store.trouble ?? "Connecting…"))]);
  if (store.session.needs_login && !store.session.is_open) return patch(app, [h("header", { key: "header" }, brand()), login.render(context())]);
  patch(app, [header(), h("main", { id: "main", key: "main", tabindex: "-1" },
    store.outcome && h("div", { key: "outcome", class: "notice" }, h("p", {}, store.outcome)), view.render(context())), footer()]);
}

function brand() {
  return h("a", { class: "brand", href: "/" }, "isolog");
}

function header() {
  const problems = store.parts.problems?.value.found ?? [];
  const tone = problems.some((each) => each.severity === "bad") ? "bad" : "wait";
  const words = { connecting: "connecting", live: "live", lost: "connection lost" }[store.connection];
  return h("header", { key: "header" },
    brand(),
    h("nav", { "aria-label": "Views" }, h("ul", {}, NAVIGATION.map(([href, name]) => {
      const isHere = href === "/" ? location.pathname === "/" : location.pathname.startsWith(href);
      return h("li", {}, h("a", { href, "aria-current": isHere ? "page" : null }, name,
        href === "/" && problems.length > 0 && h("span", { class: `badge ${tone}` }, problems.length, h("span", { class: "word" }, problems.length === 1 ? " problem" : " problems"))));
    }))),
    h("div", { class: "tools" },
      h("span", { class: `connection ${store.connection}` }, words),
      h("button", { type: "button", onclick: changeTheme, "aria-label": `Theme: ${theme()}. Change it` }, `Theme: ${theme()}`),
      h("button", { type: "button", onclick: showHelp, "aria-label": "Keyboard shortcuts" }, "?"),
      store.session.needs_login && h("button", { type: "button", onclick: logout }, `Log out ${store.session.principal}`)));
}

function footer() {
  return h("footer", { key: "footer" }, `isolog ${store.session.release}`, " · ",
    store.session.allows_changes ? "actions need a confirmation" : "read-only");
}

// -- theme ---------------------------------------------------------------------------------------

function theme() {
  return localStorage.getItem(THEME) ?? "system";
}

function changeTheme() {
  const next = { system: "light", light: "dark", dark: "system" }[theme()];
  localStorage.setItem(THEME, next);
  applyTheme();
  rerender();
}

function applyTheme() {
  if (theme() === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme();
}

// -- keyboard ------------------------------------------------------------------------------------

const SHORTCUTS = [["?", "show this list"], ...NAVIGATION.map(([, name, key]) => [`g ${key}`, `go to ${name}`]), ["/", "focus the search or the filter"], ["d", "change the theme"], ["Esc", "close this list"]];
let afterG = false;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || localStorage.getItem(SINGLE_KEYS) === "off") return;
  if (event.target.closest("input, select, textarea, dialog")) return;
  const to = afterG && NAVIGATION.find(([, , key]) => key === event.key);
  afterG = event.key === "g";
  if (to) go(to[0]);
  else if (event.key === "?") showHelp();
  else if (event.key === "d") changeTheme();
  else if (event.key === "/") document.querySelector("#filter, #find")?.focus();
  else return;
  event.preventDefault();
}

function showHelp() {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "help-title");
  const change = (event) => localStorage.setItem(SINGLE_KEYS, event.target.checked ? "on" : "off");
  patch(dialog, [
    h("h2", { id: "help-title" }, "Keyboard shortcuts"),
    h("dl", { class: "keys" }, SHORTCUTS.map(([key, words]) => h("div", {}, h("dt", {}, key.split(" ").map((each) => h("kbd", {}, each))), h("dd", {}, words)))),
    h("label", { class: "check" }, h("input", { type: "checkbox", checked: localStorage.getItem(SINGLE_KEYS) !== "off", onchange: change }), " Enable shortcuts"),
    h("form", { method: "dialog", class: "row end" }, h("button", {}, "Close")),
  ]);
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  dialog.showModal();
}

// -- sessions ------------------------------------------------------------------------------------

async function logout() {
  stop();
  stop = () => {};
  await post("/api/logout").catch(() => {});
  store.parts = {};
  store.records = undefined;
  open.path = undefined;
  await begin();
}

/** Somebody is there: a session lasts as long as it is used. */
function onActivity() {
  if (!store.session?.needs_login || !store.session.is_open || Date.now() - lastActive < ACTIVE_MS) return;
  lastActive = Date.now();
  post("/api/active").catch((error) => error.status === 401 && over());
}

async function begin({ focus = false } = {}) {
  forgetPermissions();
  try {
    store.session = await get("/api/session");
    store.over = false;
  } catch (error) {
    store.trouble = [error.message, " ", remedy(error.hint)];
    setTimeout(begin, 2000);
  }
  open({ focus });
  draw();
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[href^='/']");
  if (!anchor || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  go(anchor.getAttribute("href"));
});
document.addEventListener("outcome", (event) => {
  if (event.detail.to !== null) go(event.detail.to);
  store.outcome = event.detail.outcome;
  rerender();
});
document.addEventListener("permissions", rerender);
document.addEventListener("keydown", onKey);
for (const name of ["keydown", "pointerdown"]) document.addEventListener(name, onActivity, { passive: true });
window.addEventListener("popstate", () => open());
setInterval(rerender, 1000); // updates ages
applyTheme();
begin();
