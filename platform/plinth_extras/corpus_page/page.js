// Keyboard, preview and live thresholds of the corpus page. Every page works without this script, through its links and forms.
"use strict";

const preview = document.getElementById("preview");
const rows = () => [...document.querySelectorAll("tr.row[data-id]")];
let selected = null, reading = null, trying = null;

const wide = () => preview && preview.offsetParent !== null;

async function read(row) {
  if (!wide()) { return; }
  if (reading) { reading.abort(); }
  reading = new AbortController();
  const address = new URL(row.querySelector(".address a").href);
  address.searchParams.set("part", "preview");
  try {
    const answer = await fetch(address, {signal: reading.signal});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.querySelector("main") || page.body;
    preview.replaceChildren(...found.childNodes);
    preview.scrollTop = 0;
  } catch (error) {
    if (error.name !== "AbortError") { preview.textContent = "The document could not be read."; }
  }
}

function select(row) {
  if (!row || row === selected) { return; }
  if (selected) { selected.classList.remove("on"); }
  selected = row;
  row.classList.add("on");
  row.scrollIntoView({block: "nearest"});
  read(row);
}

function step(by) {
  const all = rows();
  if (all.length) { select(all[Math.min(all.length - 1, Math.max(0, all.indexOf(selected) + by))]); }
}

async function label(word) {
  const open = document.querySelector("main > header.document .labelling");
  const row = selected;
  const form = new URLSearchParams();
  if (open) {
    for (const [name, value] of new FormData(open)) { form.set(name, value); }
  } else if (row && row.dataset.reason) {
    form.set("id", row.dataset.id);
    form.set("reason", row.dataset.reason);
    form.set("token", document.body.dataset.token);
  }
  if (!form.get("reason")) { return; }
  form.set("label", word);
  const answer = await fetch("/label", {method: "POST", body: form, redirect: "manual"});
  if (answer.type !== "opaqueredirect") {
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    alert((page.querySelector("h1") || page.body).textContent);
  } else if (open) {
    location.reload();
  } else {
    const mark = document.createElement("span");
    mark.className = `badge ${word === "good" ? "pass" : "fail"}`;
    mark.textContent = word;
    row.querySelector(".labels").replaceChildren(mark);
    step(1);
  }
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") { event.target.blur(); }
    return;
  }
  const acts = {
    j: () => step(1),
    k: () => step(-1),
    g: () => label("good"),
    b: () => label("bad"),
    Enter: () => selected && event.target === document.body && selected.querySelector(".address a").click(),
    "/": () => document.getElementById("search") && document.getElementById("search").focus(),
  };
  if (!acts[event.key]) { return; }
  if (event.key !== "Enter") { event.preventDefault(); }
  acts[event.key]();
});

document.addEventListener("click", event => {
  const row = event.target.closest("tr.row[data-id]");
  if (!row || !wide() || event.ctrlKey || event.metaKey || event.shiftKey || event.button) { return; }
  const link = event.target.closest("a");
  if (link && !link.closest(".address")) { return; }
  if (link && row === selected) { return; }  // a second click opens the document
  event.preventDefault();
  select(row);
});

// The thresholds of a what-if: the page is asked again while a slider moves, and its answer replaces the numbers.
async function attempt() {
  const form = document.querySelector("form.thresholds"), live = document.getElementById("live");
  if (trying) { trying.abort(); }
  trying = new AbortController();
  const address = `/whatif?${new URLSearchParams(new FormData(form))}`;
  live.classList.add("busy");
  try {
    const answer = await fetch(address, {signal: trying.signal});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("live");
    if (!found) { live.prepend(page.querySelector(".error") || "The answer is not a page."); return; }
    const focused = document.activeElement && document.activeElement.dataset.for || document.activeElement.id;
    live.replaceChildren(...found.childNodes);
    const again = focused && (live.querySelector(`[data-for="${focused}"]`) || document.getElementById(focused));
    if (again) { again.focus(); }
    selected = null;
    history.replaceState(null, "", address);
  } catch (error) {
    if (error.name !== "AbortError") { location.assign(address); }
  } finally {
    live.classList.remove("busy");
  }
}

let waiting = 0;
document.addEventListener("input", event => {
  const slide = event.target.closest(".slide");
  if (!slide) { return; }
  document.getElementById(slide.dataset.for).value = slide.dataset.edges.split(" ")[slide.value];
  clearTimeout(waiting);
  waiting = setTimeout(attempt, 120);
});
document.addEventListener("change", event => {
  if (event.target.closest(".thresholds h3 input")) { attempt(); }
});

// On a phone the filters start closed.
const facets = document.querySelector("details.facets");
if (facets && matchMedia("(max-width: 760px)").matches) { facets.open = false; }
