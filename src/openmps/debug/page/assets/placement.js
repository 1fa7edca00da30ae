"use strict";
// The padding of a layer, by pointing at a pixel of its result: the tables say what it reads, nothing is worked out here.

const AROUND = 2;
const MOST_CELLS = 26;

// Draws the canvases again, which keep the colours that they were drawn in.
let repaintPlacement = () => {};

const isOutside = (tap, axis) => tap !== null && (tap < 0 || tap >= axis.source);

// What a result pixel reads: taps of both axes, and how many of the pixels are padding or zeros put in between.
function readsOf(placement, column, row) {
  const x = placement.x.taps[column], y = placement.y.taps[row];
  let padding = 0, between = 0;
  for (const v of y) for (const u of x) {
    if (isOutside(u, placement.x) || isOutside(v, placement.y)) padding++;
    else if (u === null || v === null) between++;
  }
  return { x, y, pixels: x.length * y.length, padding, between };
}

function tapText(taps, axis) {
  const named = taps.map((tap) => tap === null ? "a zero" : isOutside(tap, axis) ? `${tap} (padding)`.replace("-", "−") : String(tap));
  return named.length > 16 ? [...named.slice(0, 6), "…", ...named.slice(-6)].join(", ") : named.join(", ");
}

function placementSection(node, sides) {
  const placement = node.placement;
  if (!placement) return [make("p", { class: "soft" }, "The layer has too many windows to list what each reads.")];
  const state = { column: 0, row: 0 };
  const say = make("p", { id: "reads", role: "status", "aria-live": "polite" });
  const readsX = make("span", { class: "mono", id: "reads-x" }), readsY = make("span", { class: "mono", id: "reads-y" });
  const field = (id, axis) => make("input", { type: "number", id, min: 0, max: axis.result - 1, value: 0 });
  const column = field("pixel-x", placement.x), row = field("pixel-y", placement.y);
  const result = make("canvas", { class: "pick", tabindex: "0", role: "application", "aria-label": "Pixels of the result: arrow keys move to the next" });
  const source = make("canvas", { role: "img" });

  const update = () => {
    const read = readsOf(placement, state.column, state.row);
    const rest = [`${read.padding} of them padding`];
    if (read.between) rest.push(`${read.between} of them zeros between pixels`);
    say.textContent = `Pixel (${state.column}, ${state.row}) of the result reads ${counted(read.pixels, "pixel")}, ${rest.join(", ")}.`;
    Object.assign(say.dataset, { pixels: read.pixels, padding: read.padding, x: JSON.stringify(read.x), y: JSON.stringify(read.y) });
    readsX.textContent = tapText(read.x, placement.x);
    readsY.textContent = tapText(read.y, placement.y);
    column.value = state.column;
    row.value = state.row;
    source.setAttribute("aria-label", say.textContent);
    drawResult(result, placement, state);
    drawSource(source, placement, read);
  };
  const move = (x, y) => {
    state.column = Math.max(0, Math.min(placement.x.result - 1, x));
    state.row = Math.max(0, Math.min(placement.y.result - 1, y));
    update();
  };
  for (const input of [column, row]) input.addEventListener("change", () => move(Number(column.value) | 0, Number(row.value) | 0));
  const pointed = (event) => {
    const box = result.getBoundingClientRect();
    move(Math.floor(((event.clientX - box.left) / box.width) * placement.x.result), Math.floor(((event.clientY - box.top) / box.height) * placement.y.result));
  };
  result.addEventListener("pointermove", pointed);
  result.addEventListener("pointerdown", pointed);
  result.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    move(state.column + step[0], state.row + step[1]);
  });
  const { x, y } = placement;
  const section = [
    facts([
      ["policy", node.policy],
      ["window", `${x.size}×${y.size}, stride ${x.stride}×${y.stride}${x.dilation > 1 || y.dilation > 1 ? `, dilation ${x.dilation}×${y.dilation}` : ""}`],
      ["offset", `(${placement.offset.join(", ")})`.replace(/-/g, "−")],
      [placement.backwards ? "padding, with zeros between pixels" : "padding", sides ? sidesText(sides) : null],
      ["edge mode", placement.edge],
    ]),
    make("p", { class: "soft" }, "Point at a pixel of the result, or choose one, to see what it reads of the source."),
    make("div", { class: "row" }, make("label", { for: "pixel-x" }, "column"), column, make("label", { for: "pixel-y" }, "row"), row),
    make("div", { class: "pads" },
      make("div", {}, make("h4", {}, `Result ${x.result}×${y.result}`), result),
      make("div", {}, make("h4", {}, `Source ${x.source}×${y.source}, around the window`), source)),
    make("div", { class: "legend" },
      legend("read", (box) => [box, draw("circle", { cx: 7.5, cy: 7.5, r: 3.5, fill: "var(--tap)" })]),
      legend("read, padding", (box) => [box, draw("path", { d: "M3 3L12 12M12 3L3 12", stroke: "var(--padtap)", "stroke-width": 2.4 })]),
      legend("reads some padding", (box) => [draw("rect", { width: 15, height: 15, fill: "var(--pad)" }), box]),
      legend("outside the source", (box) => [box, draw("path", { d: "M0 15L15 0M0 7L7 0M8 15L15 8", stroke: "var(--soft)" })]),
      placement.backwards ? legend("zeros between pixels are not drawn", (box) => [box]) : null),
    say,
    facts([["columns read", readsX], ["rows read", readsY]]),
  ];
  repaintPlacement = update;
  // The canvases have a size once they are in the page.
  requestAnimationFrame(update);
  return section;
}

function legend(text, paint) {
  const box = draw("rect", { x: 0.5, y: 0.5, width: 14, height: 14, fill: "none", stroke: "var(--line)" });
  return make("span", {}, draw("svg", { viewBox: "0 0 15 15", "aria-hidden": "true" }, paint(box)), text);
}

// A canvas as sharp as the screen; gives its context in units of CSS pixels.
function sharpened(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.aspectRatio = `${width} / ${height}`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

function drawResult(canvas, placement, state) {
  const width = canvas.clientWidth || 160;
  const { result: columns } = placement.x, { result: rows } = placement.y;
  const cell = width / columns;
  const height = Math.max(12, Math.min(cell * rows, 420));
  const tall = height / rows;
  const context = sharpened(canvas, width, height);
  // Those that read padding, so that one sees where to point.
  context.fillStyle = colour("pad");
  const touches = (taps, axis) => taps.some((tap) => isOutside(tap, axis));
  placement.y.taps.forEach((taps, row) => { if (touches(taps, placement.y)) context.fillRect(0, row * tall, width, tall); });
  placement.x.taps.forEach((taps, column) => { if (touches(taps, placement.x)) context.fillRect(column * cell, 0, cell, height); });
  context.lineWidth = 0.5;
  context.strokeStyle = colour("soft");
  if (cell >= 4) {
    for (let place = 1; place < columns; place++) context.strokeRect(place * cell, 0, 0, height);
    for (let place = 1; place < rows; place++) context.strokeRect(0, place * tall, width, 0);
  }
  const size = Math.max(cell, 5), high = Math.max(tall, 5);
  const left = Math.min(state.column * cell, width - size), top = Math.min(state.row * tall, height - high);
  context.fillStyle = colour("tap");
  context.fillRect(left, top, size, high);
  context.strokeStyle = colour("ink");
  context.lineWidth = 1.5;
  context.strokeRect(left, top, size, high);
}

function drawSource(canvas, placement, read) {
  const range = (taps) => {
    const known = taps.filter((tap) => tap !== null);
    if (!known.length) return [0, 0];
    return [Math.min(...known) - AROUND, Math.max(...known) + AROUND];
  };
  const [left, right] = range(read.x), [top, bottom] = range(read.y);
  const columns = right - left + 1, rows = bottom - top + 1;
  const width = canvas.clientWidth || 240;
  const head = columns <= MOST_CELLS ? 20 : 0;
  const cell = (width - head) / columns;
  const tall = Math.min(cell, 420 / rows);
  const context = sharpened(canvas, width, rows * tall + head);
  const taps = { x: new Set(read.x), y: new Set(read.y) };
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let v = top; v <= bottom; v++) for (let u = left; u <= right; u++) {
    const x = head + (u - left) * cell, y = head + (v - top) * tall;
    const outside = isOutside(u, placement.x) || isOutside(v, placement.y);
    drawCell(context, x, y, cell, tall, outside, taps.x.has(u) && taps.y.has(v));
  }
  if (!head) return;
  context.fillStyle = colour("soft");
  const sparse = cell < 15 ? 2 : 1;
  for (let u = left; u <= right; u += sparse) context.fillText(String(u).replace("-", "−"), head + (u - left + 0.5) * cell, head / 2);
  for (let v = top; v <= bottom; v += sparse) context.fillText(String(v).replace("-", "−"), head / 2, head + (v - top + 0.5) * tall);
}

function drawCell(context, x, y, width, height, outside, isRead) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.fillStyle = colour("card");
  context.fill();
  context.clip();
  context.lineWidth = 1;
  if (outside) {
    context.strokeStyle = colour("pad");
    for (let shift = -height; shift < width; shift += 6) {
      context.beginPath();
      context.moveTo(x + shift, y + height);
      context.lineTo(x + shift + height, y);
      context.stroke();
    }
  }
  context.strokeStyle = colour("line");
  context.strokeRect(x, y, width, height);
  const middle = [x + width / 2, y + height / 2], size = Math.min(width, height) * 0.28;
  if (isRead && outside) {
    context.strokeStyle = colour("padtap");
    context.lineWidth = Math.max(1, size / 2.2);
    context.beginPath();
    for (const slope of [1, -1]) {
      context.moveTo(middle[0] - size, middle[1] - slope * size);
      context.lineTo(middle[0] + size, middle[1] + slope * size);
    }
    context.stroke();
  } else if (isRead) {
    context.fillStyle = colour("tap");
    context.beginPath();
    context.arc(middle[0], middle[1], size, 0, 2 * Math.PI);
    context.fill();
  }
  context.restore();
}
