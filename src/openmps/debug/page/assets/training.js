"use strict";
// The curves of a training, how its images are augmented, and those that the network gets wrong.

const CURVE = { width: 460, height: 250, left: 48, right: 12, top: 12, bottom: 34 };

function trainingPanel() {
  if (!DATA.curves || !DATA.curves.length) return [make("p", { class: "note" }, DATA.no_metrics || "Nothing was measured yet.")];
  return [make("h2", {}, "How it was trained"), make("div", { class: "panels" }, DATA.curves.map(curvePanel))];
}

function ticks(low, high) {
  const rough = (high - low) / 4 || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9 * step; value += step) found.push(Number(value.toPrecision(8)));
  return found;
}

function curvePanel(panel) {
  const { width, height, left, right, top, bottom } = CURVE;
  const points = panel.lines.flatMap((line) => line.points);
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const limits = { x: [Math.min(...xs), Math.max(...xs)], y: [Math.min(0, ...ys), Math.max(...ys)] };
  const scale = (value, [low, high], begin, end) => begin + ((value - low) / (high - low || 1)) * (end - begin);
  const x = (value) => scale(value, limits.x, left, width - right), y = (value) => scale(value, limits.y, height - bottom, top);
  const isShare = panel.title === "Accuracy";
  const said = (value) => isShare ? `${(100 * value).toFixed(1)} %` : short(value);
  const cursor = draw("line", { class: "axis", y1: top, y2: height - bottom, visibility: "hidden" });
  const last = panel.lines.map((line) => `${line.name} ends at ${said(line.points.at(-1)[1])}`).join(", ");
  const chart = draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${panel.title} over ${panel.over}s: ${last}` },
    ticks(...limits.y).map((value) => [
      draw("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, isShare ? `${Math.round(100 * value)} %` : short(value))]),
    ticks(...limits.x).map((value) => draw("text", { x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, whole(value))),
    draw("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, panel.over), cursor,
    panel.lines.map((line) => [
      draw("path", { class: `curve ${line.name}`, d: line.points.map(([u, v], place) => `${place ? "L" : "M"}${x(u).toFixed(1)} ${y(v).toFixed(1)}`).join("") }),
      line.points.length <= 40 ? line.points.map(([u, v]) => draw("circle", { class: `dot ${line.name}`, cx: x(u), cy: y(v), r: 3 })) : null]));
  const readout = make("p", { class: "figures" }, panel.lines.map((line) => readoutOf(line, line.points.at(-1), said, panel.over)));
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const wanted = limits.x[0] + (((event.clientX - box.left) / box.width) * width - left) / (width - left - right) * (limits.x[1] - limits.x[0]);
    const near = panel.lines.map((line) => line.points.reduce((best, point) => Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best));
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, x(near[0][0]));
    cursor.setAttribute("visibility", "visible");
    readout.replaceChildren(...panel.lines.map((line, place) => readoutOf(line, near[place], said, panel.over)));
  });
  return make("section", { class: "panel" }, make("h3", {}, panel.title), chart, readout, pointsTable(panel, said));
}

function readoutOf(line, point, said, over) {
  const key = draw("svg", { viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true" }, draw("path", { class: `curve ${line.name}`, d: "M0 5H26" }));
  return make("span", {}, key, ` ${line.name} `, make("b", {}, said(point[1])), ` at ${over} ${whole(point[0])}`);
}

function pointsTable(panel, said) {
  const by = new Map();
  panel.lines.forEach((line, place) => line.points.forEach(([x, y]) => by.set(x, { ...by.get(x), [place]: y })));
  const rows = [...by].sort((one, other) => one[0] - other[0]);
  const box = make("div", { class: "tablebox" });
  const details = make("details", {}, make("summary", {}, "As a table"), box);
  // Made when it is looked at.
  details.addEventListener("toggle", () => box.replaceChildren(make("table", {}, make("caption", {}, `${panel.title} by ${panel.over}`),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, panel.over), panel.lines.map((line) => make("th", { scope: "col", class: "number" }, line.name)))),
    make("tbody", {}, rows.map(([x, values]) => make("tr", {}, make("th", { scope: "row" }, whole(x)),
      panel.lines.map((_, place) => make("td", { class: "number" }, values[place] === undefined ? "" : said(values[place])))))))), { once: true });
  return details;
}

function augmentedPanel() {
  const { text, rows } = DATA.augmented;
  const named = (sheet, name) => {
    const [{ canvas }] = pictures(sheet, true);
    canvas.setAttribute("aria-label", name);
    canvas.removeAttribute("title");
    return make("figure", {}, canvas, make("figcaption", {}, name));
  };
  return [make("h2", {}, `Training images, augmented by ${text}`), ...rows.map((row, number) =>
    make("div", { class: "maps", role: "group", "aria-label": `Image ${number + 1}` }, row.map((sheet, step) => named(sheet, step ? `step ${step}` : "as it is"))))];
}

function mistakesPanel() {
  const found = DATA.mistakes;
  if (!found) return [make("p", { class: "note" }, DATA.no_mistakes)];
  const shown = found.images.length;
  const head = found.wrong ? `${whole(found.wrong)} of ${counted(found.tested, "image")} misclassified (${percent(found.wrong / found.tested)})` : `None of ${counted(found.tested, "image")} misclassified`;
  const more = shown < found.wrong ? `; the ${shown} that the network is most sure of` : shown > 1 ? ", the most confident first" : "";
  return [make("h2", {}, head + more), make("div", { class: "wrongs", role: "list" }, found.images.map((image) => {
    const [{ canvas }] = pictures(image.picture, true);
    const text = `${image.true} taken for ${image.taken}`;
    canvas.setAttribute("aria-label", `Image of ${text}`);
    canvas.removeAttribute("title");
    return make("figure", { class: "panel", role: "listitem" }, canvas, make("div", { class: "taken" }, text),
      bars(image.likeliest.map(([name, probability]) => [name === image.true ? `${name} (true)` : name, probability, `${(100 * probability).toFixed(1)} %`])));
  }))];
}
