"use strict";
// Histograms, pictures and bars of a layer's numbers.

const HISTOGRAM = { width: 400, height: 96, foot: 16 };
// From dark to light, about even in lightness; and for weights from negative by zero to positive.
const RAMP = [[20, 16, 48], [62, 41, 120], [126, 58, 130], [196, 84, 103], [243, 146, 84], [252, 225, 164]];
const SIGNED = [[24, 74, 160], [120, 165, 220], [245, 245, 245], [240, 160, 110], [165, 50, 20]];

function histogram(of, what) {
  const { width, height, foot } = HISTOGRAM;
  const most = Math.max(...of.bins, 1);
  const step = width / Math.max(of.bins.length, 1);
  const bars = of.bins.map((count, place) => {
    // A bin with one number in a million is seen, too.
    const tall = count ? Math.max(1, (count / most) * (height - foot - 2)) : 0;
    return draw("rect", { class: "bar", x: place * step, y: height - foot - tall, width: Math.max(step - 1, 1), height: tall });
  });
  const text = `Histogram of ${what}: ${whole(of.count)} numbers from ${short(of.least)} to ${short(of.largest)}, ` +
    `mean ${short(of.mean)}, ${percent(of.zeros)} zeros`;
  const range = of.largest - of.least;
  const zero = of.least < 0 && of.largest > 0 ? (-of.least / range) * width : null;
  return draw("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text },
    bars,
    draw("line", { class: "axis", x1: 0, x2: width, y1: height - foot, y2: height - foot }),
    zero === null ? null : draw("line", { class: "zero", x1: zero, x2: zero, y1: 4, y2: height - foot }),
    draw("text", { x: 0, y: height - 3 }, short(of.least)),
    zero === null || zero < 60 || zero > width - 60 ? null : draw("text", { x: zero, y: height - 3, "text-anchor": "middle" }, "0"),
    draw("text", { x: width, y: height - 3, "text-anchor": "end" }, short(of.largest)));
}

function statistics(of) {
  const pairs = [["least", short(of.least)], ["largest", short(of.largest)], ["mean", short(of.mean)],
    ["deviation", short(of.deviation)], ["zeros", percent(of.zeros)]];
  if (of.not_finite) pairs.push(["NaN or infinite", whole(of.not_finite)]);
  return make("div", { class: "figures" }, pairs.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, value))));
}

function shade(ramp, part) {
  const place = Math.min(part, 0.99999) * (ramp.length - 1);
  const low = Math.floor(place);
  return ramp[low].map((value, axis) => value + (ramp[low + 1][axis] - value) * (place - low));
}

// One canvas for each picture of a sheet.
function pictures(sheet, plain) {
  const coded = atob(sheet.data);
  const each = sheet.width * sheet.height * (sheet.colours ? 3 : 1);
  const shades = Array.from({ length: 256 }, (_, value) => plain ? [value, value, value] : shade(sheet.signed ? SIGNED : RAMP, value / 255));
  return sheet.names.map((name, number) => {
    const [low, high] = sheet.ranges[number];
    const text = `${name}, ${short(low)} to ${short(high)}`;
    const canvas = make("canvas", { width: sheet.width, height: sheet.height, role: "img", "aria-label": text, title: text });
    const context = canvas.getContext("2d");
    const image = context.createImageData(sheet.width, sheet.height);
    for (let pixel = 0; pixel < sheet.width * sheet.height; pixel++) {
      const from = number * each + pixel * (sheet.colours ? 3 : 1);
      const code = coded.charCodeAt(from);
      const rgb = sheet.colours ? [code, coded.charCodeAt(from + 1), coded.charCodeAt(from + 2)] : shades[code];
      image.data.set([rgb[0], rgb[1], rgb[2], 255], 4 * pixel);
    }
    context.putImageData(image, 0, 0);
    return { canvas, name, range: `${short(low)} … ${short(high)}` };
  });
}

function gallery(sheet) {
  const found = pictures(sheet, false);
  const figures = found.map(({ canvas, name, range }) => make("figure", {}, canvas,
    make("figcaption", {}, found.length > 1 ? name : `${name}: ${range}`, found.length > 1 ? make("br") : null, found.length > 1 ? range : null)));
  const rest = sheet.of > found.length && !sheet.colours ? make("p", { class: "soft" }, `${found.length} of ${whole(sheet.of)} shown, each over its own range.`) : null;
  return [make("div", { class: found.length === 1 ? "maps wide" : "maps" }, figures), rest];
}

// Numbers of an image of one pixel: the largest of them as bars.
function channelBars(list, names) {
  const ranked = list.values.map((value, place) => [value, place]).filter(([value]) => value !== null)
    .sort((one, other) => other[0] - one[0]).slice(0, 8);
  const most = Math.max(...ranked.map(([value]) => Math.abs(value)), 1e-30);
  const called = (place) => names && names.length === list.of ? names[place] : `channel ${place}`;
  return [
    make("p", { class: "soft" }, `The largest of ${counted(list.of, "channel")}:`),
    bars(ranked.map(([value, place]) => [called(place), Math.max(value, 0) / most, short(value)])),
  ];
}

// Rows of a name, a bar from 0 to 1 and a text that says the same.
function bars(rows) {
  return make("ul", { class: "bars" }, rows.map(([name, part, text]) => {
    const bar = make("span", { class: "fill" });
    bar.style.width = `${100 * part}%`;
    return make("li", {}, make("span", { class: "name", title: name }, name),
      make("span", { class: "track", "aria-hidden": "true" }, bar), make("span", { class: "mono" }, text));
  }));
}
