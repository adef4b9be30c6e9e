// Keeps a page alive: the server sends it again whenever something changed, and only what differs is touched, so that
// focus, open details and half-written forms stay. Everything on a page works without this file, by reloading.
"use strict";

const live = document.getElementById("live");
const away = document.getElementById("away");

// Whether two nodes are one thing at two times: by id where there is one, else by what they look like from outside.
function same(one, other) {
  if (one.nodeName !== other.nodeName) return false;
  if (one.nodeType !== Node.ELEMENT_NODE) return true;
  if (one.id || other.id) return one.id === other.id;
  return one.getAttribute("class") === other.getAttribute("class");
}

function parts(node) {
  return [...node.childNodes].filter((part) => part.nodeType === Node.ELEMENT_NODE || (part.data ?? "").trim() !== "");
}

// Makes `old` like `fresh`, keeping nodes where it can. What a person changed (values, open details) is theirs.
function become(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.nodeName === "TEXTAREA") return;
  const left = parts(old);
  let last = null;
  for (const next of parts(fresh)) {
    const at = left.findIndex((known) => same(known, next));
    const placed = at < 0 ? next : left.splice(at, 1)[0];
    if (at >= 0) become(placed, next);
    const before = last === null || (last.compareDocumentPosition(placed) & Node.DOCUMENT_POSITION_FOLLOWING);
    if (at < 0 || !before) old.insertBefore(placed, last ? last.nextSibling : old.firstChild);
    last = placed;
  }
  for (const gone of left) if (!kept(gone)) gone.remove();
}

// What a person has chosen stays to be acted upon, though the list has gone on without it. What is shown of it is old.
const CHOSEN = 'input[name^="run."]:checked';

function kept(node) {
  if (node.nodeType !== Node.ELEMENT_NODE || !node.querySelector(CHOSEN)) return false;
  const rows = node.nodeName === "TR" ? [node] : node.querySelectorAll("tbody tr");
  for (const row of rows) {
    const status = row.querySelector(".status");
    if (!row.querySelector(CHOSEN)) row.remove();
    else if (status) {
      status.className = "status gone";
      status.textContent = "no longer listed";
    }
  }
  return true;
}

function ages() {
  const now = Date.now();
  for (const node of document.querySelectorAll("time[data-age]")) {
    const seconds = Math.round((now - Date.parse(node.dateTime)) / 1000);
    const text = age(Math.abs(seconds));
    const said = text === "" ? "just now" : seconds < 0 ? `in ${text}` : `${text} ago`;
    if (node.textContent !== said) node.textContent = said;
  }
}

function age(seconds) {
  if (seconds < 2) return "";
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 100 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

let source = null;

function listen() {
  if (source || !live || !live.hasAttribute("data-live") || document.hidden) return;
  source = new EventSource(location.href);
  source.addEventListener("page", (event) => {
    const fresh = live.cloneNode(false);
    fresh.innerHTML = JSON.parse(event.data);
    become(live, fresh);
    ages();
    away.classList.remove("shown");
  });
  source.addEventListener("away", () => away.classList.add("shown"));
  source.addEventListener("signin", () => location.reload());
  source.onerror = () => away.classList.add("shown");
  source.onopen = () => away.classList.remove("shown");
}

function rest() {
  if (source) source.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
window.addEventListener("pagehide", rest);
window.addEventListener("pageshow", listen);

// A form marked so is sent as soon as something is chosen.
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-at-once]");
  if (form) form.requestSubmit();
});

document.addEventListener("click", (event) => {
  const theme = event.target.closest("[data-theme-to]");
  if (theme) {
    document.cookie = `kagzi_theme=${theme.dataset.themeTo}; path=/; max-age=31536000; samesite=strict`;
    location.reload();
  }
  const copied = event.target.closest("[data-copy]");
  if (copied && navigator.clipboard) {
    navigator.clipboard.writeText(copied.dataset.copy).then(() => {
      copied.dataset.said ??= copied.textContent;
      copied.textContent = "Copied";
      setTimeout(() => (copied.textContent = copied.dataset.said), 1200);
    });
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select")) return;
  const search = document.querySelector("[data-search]");
  if (search) {
    event.preventDefault();
    search.focus();
  }
});

ages();
setInterval(ages, 1000);
listen();
