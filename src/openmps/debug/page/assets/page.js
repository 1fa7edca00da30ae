"use strict";
// The page: its tabs, the theme, and what is chosen.

const THEME = "openmps-theme";

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").setAttribute("aria-pressed", String(dark));
  repaintPlacement();
}

function kept() {
  // A file may have no storage.
  try { return localStorage.getItem(THEME); } catch { return null; }
}

function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  setTheme(kept() ? kept() === "dark" : system.matches);
  system.addEventListener("change", () => { if (!kept()) setTheme(system.matches); });
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(!isDark());
    try { localStorage.setItem(THEME, isDark() ? "dark" : "light"); } catch { /* it holds until the page is closed */ }
  });
}

function start() {
  startTheme();
  document.getElementById("title").textContent = DATA.title;
  document.getElementById("facts").textContent = DATA.facts[0] || "";
  const main = document.getElementById("main");
  const entries = [];
  let show = () => {};
  const detail = make("section", { class: "detail", id: "detail", tabindex: "-1", "aria-label": "Details" });
  DATA.views.forEach((view, number) => {
    view.key = `graph-${number}`;
    const drawing = new GraphDrawing(view, (index) => {
      detail.replaceChildren(...[layerDetail(view, index, choose)].flat(Infinity).filter(Boolean));
      detail.scrollTop = 0;
      detail.setAttribute("aria-label", `Details of ${view.nodes[index].label}`);
    });
    const choose = (index) => {
      show(view.key);
      drawing.select(index, { focus: false });
    };
    const split = make("div", { class: "split" }, drawing.element);
    entries.push({ key: view.key, name: view.name, panel: split, open: () => {
      split.append(detail);
      if (!drawing.layout) drawing.paint();
      if (drawing.selected === null) detail.replaceChildren(...[networkDetail(view, choose)].flat(Infinity).filter(Boolean));
      else drawing.onSelect(drawing.selected);
    } });
    const table = make("div", { class: "scroll", tabindex: "0" });
    entries.push({ key: `table-${number}`, name: `${view.name} as a table`, panel: table, open: () => {
      if (!table.firstChild) table.append(tableOf(view, choose));
    } });
  });
  const others = [["training", "Training", trainingPanel, DATA.curves || DATA.no_metrics], ["augmentation", "Augmentation", augmentedPanel, DATA.augmented], ["mistakes", "Mistakes", mistakesPanel, DATA.mistakes || DATA.no_mistakes]];
  for (const [key, name, made] of others.filter(([, , , told]) => told)) {
    const panel = make("div", { class: "scroll", tabindex: "0" });
    entries.push({ key, name, panel, open: () => { if (!panel.firstChild) panel.append(...made()); } });
  }
  for (const { key, panel } of entries) main.append(fill(panel, { role: "tabpanel", id: `panel-${key}`, "aria-labelledby": `tab-${key}`, hidden: true }, []));
  show = tabs(document.getElementById("tabs"), entries, (key) => {
    for (const entry of entries) entry.panel.hidden = entry.key !== key;
    entries.find((entry) => entry.key === key).open();
  });
}

start();
performance.mark("drawn");
