// Draws the plots of a report by uPlot, writes their numbers into tables, and keeps the switches of the page.
(function () {
  "use strict";
  const content = JSON.parse(document.getElementById("plots-data").textContent);
  const root = document.documentElement;
  const dashes = [[], [9, 4], [2, 4], [10, 4, 2, 4], [5, 3], [14, 4], [2, 2, 8, 4], [5, 6]];
  const axes = { step: "step", samples: "samples", seconds: "seconds" };
  const charts = [], printed = 320; // pixels of a plot in one of two columns of a page
  const said = document.getElementById("said");
  let axis = "step";

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const make = (name, attributes, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const shown = (value) => {
    if (value === null || value === undefined) return "-";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    return size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(6))) : value.toExponential(4);
  };
  const brief = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e9) return Number((value / 1e9).toPrecision(4)) + "G";
    if (size >= 1e6) return Number((value / 1e6).toPrecision(4)) + "M";
    if (size >= 1e4) return Number((value / 1e3).toPrecision(4)) + "k";
    return size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
  };

  // Places ------------------------------------------------------------------------------------------------------------
  const ofTraining = (plot) => plot.x === "" && plot.kind !== "bars";
  const known = (name) => content.plots.filter(ofTraining).every((plot) => plot.series.every((one) => content.places[one.x][name].every((x) => x !== null)));
  function places(plot, series) {
    const found = content.places[series.x];
    if (plot.kind === "bars") return found.map((_, index) => index);
    return ofTraining(plot) ? found[axis] : found;
  }
  function increasing(x) {
    const found = x.slice();
    for (let i = 1; i < found.length; i++) if (found[i] <= found[i - 1]) found[i] = found[i - 1] + Math.max(1e-9, Math.abs(found[i - 1]) * 1e-9);
    return found;
  }
  function ordered(x, columns) { // uPlot's places rise
    const index = x.map((_, i) => i).sort((a, b) => x[a] - x[b] || a - b);
    return [increasing(index.map((i) => x[i])), ...columns.map((column) => index.map((i) => (column[i] === undefined ? null : column[i])))];
  }
  function data(plot) {
    if (plot.kind === "stack") {
      const x = increasing(places(plot, plot.series[0]));
      const sums = plot.series.map((_, k) => x.map((_, i) => plot.series.slice(0, k + 1).reduce((sum, one) => sum + (one.v[i] || 0), 0)));
      return [x, ...sums.reverse()];
    }
    const tables = plot.series.map((one) => ordered(places(plot, one), one.low ? [one.v, one.low, one.high] : [one.v]));
    return tables.length === 1 ? tables[0] : uPlot.join(tables);
  }

  // Plots -------------------------------------------------------------------------------------------------------------
  const looks = (plot) => plot.series.map((one, index) => ({
    colour: `--c${(one.colour ?? index) % 8}`,
    dash: plot.kind === "stack" || one.points ? [] : dashes[(one.dashed ?? index) % dashes.length],
  }));
  function whiskers(plot) { // intervals of single points and bars, drawn through uPlot's hook
    return (u) => {
      let column = 0;
      for (const one of plot.series) {
        column += 1;
        if (!one.low) continue;
        const [low, high] = [u.data[column + 1], u.data[column + 2]];
        column += 2;
        if (!one.points && plot.kind !== "bars") continue;
        const context = u.ctx, lying = u.scales.x.ori === 1, half = 4 * devicePixelRatio;
        context.save();
        context.strokeStyle = colour("--text");
        context.lineWidth = 1.5 * devicePixelRatio;
        context.beginPath();
        u.data[0].forEach((x, i) => {
          if (low[i] === null || low[i] === undefined) return;
          const at = u.valToPos(x, "x", true), from = u.valToPos(low[i], "y", true), to = u.valToPos(high[i], "y", true);
          for (const [a, b, c, d] of [[at, from, at, to], [at - half, from, at + half, from], [at - half, to, at + half, to]]) {
            context.moveTo(...(lying ? [b, a] : [a, b]));
            context.lineTo(...(lying ? [d, c] : [c, d]));
          }
        });
        context.stroke();
        context.restore();
      }
    };
  }
  function seriesOf(plot) {
    const list = [{}], bands = [], look = looks(plot);
    const order = plot.kind === "stack" ? plot.series.map((_, i) => i).reverse() : plot.series.map((_, i) => i);
    for (const index of order) {
      const one = plot.series[index], stroke = () => colour(look[index].colour);
      const entry = { label: one.label, stroke, width: 2, dash: look[index].dash, spanGaps: true, points: {} };
      if (one.points) Object.assign(entry, { paths: () => null, points: { show: true, size: 9, fill: stroke } });
      if (plot.kind === "stack") Object.assign(entry, { fill: stroke, width: 1, points: { show: false } });
      if (plot.kind === "steps") Object.assign(entry, { paths: uPlot.paths.stepped({ align: 0 }), points: { show: false }, fill: () => stroke() + "22" });
      if (plot.kind === "bars" && !one.points) Object.assign(entry, { paths: uPlot.paths.bars({ size: [0.7, 60] }), fill: () => stroke() + "cc", width: 1, dash: [], points: { show: false } });
      list.push(entry);
      if (one.low) {
        const at = list.length;
        const hidden = { label: "", width: 0, spanGaps: true, points: { show: false }, paths: plot.kind === "bars" || one.points ? () => null : undefined };
        list.push({ ...hidden }, { ...hidden });
        if (plot.kind !== "bars" && !one.points) bands.push({ series: [at + 1, at], fill: () => stroke() + "2e" });
      }
    }
    return [list, bands];
  }
  function widest(names) {
    const context = document.createElement("canvas").getContext("2d");
    context.font = "13px system-ui, sans-serif";
    return Math.max(30, ...names.map((name) => context.measureText(name).width)) + 16;
  }
  const cut = (name, most) => (name.length > most ? name.slice(0, most - 1) + "…" : name);
  function optionsOf(plot, width) {
    const bars = plot.kind === "bars", names = bars ? content.places[plot.series[0].x].map((name) => cut(String(name), width < 500 ? 14 : 26)) : [];
    const rows = plot.kind === "events" ? plot.series.map((one) => one.label) : [];
    const [series, bands] = seriesOf(plot);
    const font = "13px system-ui, sans-serif";
    const common = { stroke: () => colour("--text"), font, labelFont: font, labelSize: 20, grid: { stroke: () => colour("--grid"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1 } };
    const numbers = (u, values) => values.map((value) => (value === null ? "" : brief(value)));
    const range = (u, low, high) => {
      if (low === null || low === undefined) return [0, 1];
      if (plot.whole) low = Math.min(0, low);
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      return [plot.whole && low === 0 ? 0 : low - room, high + room];
    };
    const labels = { x: ofTraining(plot) ? axes[axis] : plot.x, y: plot.y };
    const x = { ...common, label: labels.x, values: numbers, space: 60, size: 30, labelSize: 18 };
    const y = { ...common, label: labels.y, values: numbers, size: 62 };
    const options = {
      width,
      height: bars ? Math.max(150, names.length * 26 + 80) : plot.kind === "events" ? 90 + rows.length * 32 : width < 500 ? 240 : 290,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: true }, points: { size: 8 }, y: false },
      scales: { x: { time: false, range: (u, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) }, y: { range } },
      axes: [x, y],
      series,
      bands,
      hooks: { draw: [whiskers(plot)], setCursor: [], setScale: [] },
    };
    if (ofTraining(plot)) options.cursor.sync = { key: "training", scales: ["x", null] };
    if (bars) {
      options.scales.x = { time: false, ori: 1, dir: -1, range: [-0.5, names.length - 0.5] };
      options.scales.y = { ori: 0, range };
      options.cursor = { drag: { x: false, y: false }, x: false, points: { show: false } };
      options.axes = [
        { ...common, side: 3, size: widest(names), splits: names.map((_, i) => i), values: (u, splits) => splits.map((i) => names[i]), grid: { show: false }, gap: 6 },
        { ...common, side: 2, label: labels.y, values: numbers, space: 60, size: 30, labelSize: 18 },
      ];
    }
    if (rows.length) {
      options.scales.y = { range: [-0.6, rows.length - 0.4] };
      options.axes[1] = { ...y, label: undefined, size: widest(rows), splits: rows.map((_, i) => i), values: (u, splits) => splits.map((i) => rows[i]) };
      const end = Math.max(1e-9, ...plot.series.flatMap((one) => content.places[one.x]));
      options.scales.x.range = (u, low, high) => (low <= 0 && high >= end ? [-end * 0.03, end * 1.03] : [low, high]);
    }
    return options;
  }

  // Around a plot -----------------------------------------------------------------------------------------------------
  function swatch(look, points) {
    const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
    for (const [key, value] of Object.entries({ width: 30, height: 10, "aria-hidden": "true" })) svg.setAttribute(key, value);
    const mark = document.createElementNS(space, points ? "circle" : "line");
    const at = points ? { cx: 15, cy: 5, r: 4.5, fill: `var(${look.colour})` } : { x1: 0, x2: 30, y1: 5, y2: 5, stroke: `var(${look.colour})`, "stroke-width": 3, "stroke-dasharray": look.dash.join(" ") };
    for (const [key, value] of Object.entries(at)) mark.setAttribute(key, value);
    svg.append(mark);
    return svg;
  }
  function summaryOf(plot) {
    const parts = plot.series.map((one) => {
      const values = one.v.filter((value) => value !== null);
      return values.length ? `${one.label}: ${values.length} figures from ${shown(Math.min(...values))} to ${shown(Math.max(...values))}, the last ${shown(values[values.length - 1])}` : one.label;
    });
    return `chart: ${plot.title}. ${parts.slice(0, 6).join("; ")}. Left and right arrow: read the figures. Plus, minus and 0: zoom. The table below has all of them.`;
  }
  function readout(chart, index) {
    const { plot, u } = chart;
    if (index === null || index === undefined || !(index in u.data[0])) return "";
    const training = ofTraining(plot), x = u.data[0][index];
    const place = plot.kind === "bars" ? content.places[plot.series[0].x][index] : `${training ? axes[axis] : plot.x} ${shown(x)}`;
    const values = [];
    let column = 1;
    plot.series.forEach((one) => {
      const at = plot.kind === "stack" ? null : u.data[column][index];
      const value = plot.kind === "stack" ? one.v[index] : at;
      if (value !== null && value !== undefined) {
        const limits = one.low && u.data[column + 1][index] !== null ? ` (${shown(u.data[column + 1][index])} to ${shown(u.data[column + 2][index])})` : "";
        values.push(plot.kind === "events" ? one.label : `${one.label} ${shown(value)}${limits}`);
      }
      column += one.low ? 3 : 1;
    });
    return `${place}: ${values.join(", ")}`;
  }
  function zoom(u, factor) {
    const [first, last] = [u.data[0][0], u.data[0][u.data[0].length - 1]];
    const { min, max } = u.scales.x, middle = u.cursor.idx !== null && u.cursor.idx !== undefined ? u.data[0][u.cursor.idx] : (min + max) / 2;
    const half = ((max - min) / 2) * factor;
    u.setScale("x", factor ? { min: Math.max(first, middle - half), max: Math.min(last, middle + half) } : { min: first, max: last });
  }
  function keys(chart) {
    return (event) => {
      const { u, plot } = chart, count = u.data[0].length, bars = plot.kind === "bars";
      const at = chart.index ?? -1;
      const step = event.shiftKey ? Math.max(1, Math.round(count / 20)) : 1;
      const to = { ArrowRight: at + step, ArrowDown: bars ? at + step : undefined, ArrowLeft: at - step, ArrowUp: bars ? at - step : undefined, Home: 0, End: count - 1 }[event.key];
      if (to !== undefined) {
        chart.index = Math.max(0, Math.min(count - 1, to));
        const x = u.data[0][chart.index];
        if (!bars && (x < u.scales.x.min || x > u.scales.x.max)) zoom(u, 0);
        const at = u.valToPos(x, "x");
        u.setCursor(bars ? { left: 10, top: at } : { left: at, top: 10 });
        said.textContent = chart.readout.textContent = readout(chart, chart.index);
      } else if (!bars && ["+", "=", "-", "0", "Escape"].includes(event.key)) {
        zoom(u, { "+": 0.5, "=": 0.5, "-": 2 }[event.key] || 0);
      } else return;
      event.preventDefault();
    };
  }
  function draw(chart, fixed) {
    const { plot, box } = chart, width = fixed || Math.max(260, Math.floor(box.clientWidth));
    if (chart.u) chart.u.destroy();
    const options = optionsOf(plot, width);
    options.hooks.setCursor.push((u) => {
      if (chart.u === undefined) return;
      const index = u.cursor.idx;
      if (index !== null && index !== undefined) chart.index = index;
      chart.readout.textContent = readout(chart, index) || chart.hint;
    });
    options.hooks.setScale.push((u, scale) => {
      if (scale !== "x" || !chart.reset || plot.kind === "bars") return;
      const x = u.data[0];
      chart.reset.hidden = u.scales.x.min <= x[0] && u.scales.x.max >= x[x.length - 1];
    });
    chart.u = undefined;
    chart.index = null;
    const u = new uPlot(options, data(plot), box);
    chart.u = u;
    chart.width = width;
    chart.off.forEach((index) => show(chart, index, false));
    for (const canvas of box.querySelectorAll("canvas")) canvas.setAttribute("aria-hidden", "true");
  }
  function show(chart, index, visible) {
    const { plot, u } = chart;
    let column = 1;
    plot.series.slice(0, index).forEach((one) => (column += one.low ? 3 : 1));
    for (let k = 0; k < (plot.series[index].low ? 3 : 1); k++) u.setSeries(column + k, { show: visible });
  }
  function legend(chart) {
    const { plot } = chart, look = looks(plot), list = make("ul", { class: "legend", "aria-label": `lines of ${plot.title}` });
    if (plot.series.length < 2 || plot.kind === "events") return null;
    plot.series.forEach((one, index) => {
      const inside = [swatch(look[index], one.points), one.label];
      if (plot.kind === "stack") return list.append(make("li", {}, ...inside));
      const button = make("button", { type: "button", "aria-pressed": "true" }, ...inside);
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        on ? chart.off.delete(index) : chart.off.add(index);
        show(chart, index, on);
      });
      list.append(make("li", {}, button));
    });
    return list;
  }

  // Tables ------------------------------------------------------------------------------------------------------------
  function rowsOf(plot) { // the numbers of a plot: names of the columns, and rows
    const training = ofTraining(plot), names = training ? Object.keys(axes).filter((name) => name === "step" || content.places[plot.series[0].x][name].some((x) => x !== null)) : [plot.x || "place"];
    const head = [...names], byPlace = new Map();
    let width = names.length;
    plot.series.forEach((one, order) => {
      const columns = [one.v, ...(one.low ? [one.low, one.high] : [])];
      head.push(one.label, ...(one.low ? [`${one.label}, low`, `${one.label}, high`] : []));
      const extra = order === 0 ? Object.entries(plot.columns) : [];
      head.push(...extra.map(([name]) => name));
      const found = content.places[one.x], count = training ? found.step.length : found.length;
      const rowWidth = columns.length + extra.length;
      const seen = new Map();
      for (let i = 0; i < count; i++) {
        const key = training ? found.step[i] : found[i];
        const again = seen.get(key) || 0; // a place may occur twice, as in ROC
        seen.set(key, again + 1);
        const id = `${key} ${again}`;
        if (!byPlace.has(id)) byPlace.set(id, { key, cells: [...(training ? names.map((name) => found[name][i]) : [key])] });
        const row = byPlace.get(id).cells;
        [...columns, ...extra.map(([, values]) => values)].forEach((values, k) => (row[width + k] = values[i] ?? null));
      }
      width += rowWidth;
    });
    const rows = [...byPlace.values()];
    if (plot.kind !== "bars" && plot.series.length > 1) rows.sort((a, b) => a.key - b.key);
    return [head, rows.map(({ cells }) => Array.from({ length: width }, (_, k) => cells[k] ?? null))];
  }
  function tableOf(plot) {
    const [head, rows] = rowsOf(plot);
    const body = make("tbody"), right = head.map((_, k) => k > 0 && rows.every((row) => typeof row[k] === "number" || row[k] === null));
    for (const row of rows) {
      const cells = row.map((value, place) => {
        const numeric = typeof value === "number";
        const inside = numeric ? make("data", { value: String(value) }, shown(value)) : shown(value);
        return make(place ? "td" : "th", place ? (right[place] ? { class: "n" } : {}) : { scope: "row" }, inside);
      });
      body.append(make("tr", {}, ...cells));
    }
    const header = make("thead", {}, make("tr", {}, ...head.map((name, k) => make("th", { scope: "col", ...(right[k] ? { class: "n" } : {}) }, name))));
    const table = make("table", {}, make("caption", { class: "quiet" }, `numbers of ${plot.title}`), header, body);
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `table: numbers of ${plot.title}` }, table);
  }
  function numbers(plot) {
    const details = make("details", {}, make("summary", {}, `Numbers of “${plot.title}”`));
    details.addEventListener("toggle", () => {
      if (!details.open || details.querySelector("table")) return;
      const table = tableOf(plot);
      details.append(table, copier(table, `numbers of ${plot.title}`));
    });
    return details;
  }
  async function copy(text, button) {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { "aria-label": "copied text" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    said.textContent = button.textContent = "Copied";
    setTimeout(() => (button.textContent = before), 1500);
  }
  function copier(box, name) {
    const button = make("button", { type: "button", class: "copy", "aria-label": `Copy table: ${name}` }, "Copy table");
    button.addEventListener("click", () => {
      const cell = (one) => { const found = one.querySelectorAll("data"); return (found.length === 1 ? found[0].value : one.textContent).replace(/[\t\n]+/g, " "); };
      copy([...box.querySelectorAll("tr")].map((row) => [...row.cells].map(cell).join("\t")).join("\n"), button);
    });
    return button;
  }

  // The page ----------------------------------------------------------------------------------------------------------
  function radios(title, name, choices, chosen, act) {
    const box = make("fieldset", {}, make("legend", {}, title));
    for (const [value, label] of choices) {
      const input = make("input", { type: "radio", name, value, ...(value === chosen ? { checked: "" } : {}) });
      input.addEventListener("change", () => act(value));
      box.append(make("label", {}, input, label));
    }
    document.getElementById("controls").append(box);
  }
  const redraw = () => charts.forEach((chart) => chart.u && draw(chart));
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  let theme = "system";
  function setTheme(value) {
    theme = value;
    root.dataset.theme = value === "system" ? (prefersDark.matches ? "dark" : "light") : value;
    redraw();
  }
  prefersDark.addEventListener("change", () => setTheme(theme));
  setTheme("system");
  if (content.plots.some(ofTraining)) {
    const choices = Object.entries(axes).filter(([name]) => name === "step" || known(name)).map(([name, label]) => [name, name === "seconds" ? "time" : label]);
    radios("Curves by", "axis", choices, "step", (value) => { axis = value; redraw(); });
  }
  if (content.plots.length) {
    const hint = "Point at a plot to read it, drag to zoom, double-click for the whole; or reach it with Tab, and use arrows, +, - and 0.";
    document.getElementById("controls").after(make("p", { class: "note" }, hint));
  }
  radios("Colours", "theme", [["system", "as the system"], ["light", "light"], ["dark", "dark"]], "system", setTheme);

  const plots = new Map(content.plots.map((plot) => [plot.name, plot]));
  for (const place of document.querySelectorAll("[data-plot]")) {
    const plot = plots.get(place.dataset.plot);
    const chart = { plot, off: new Set(), index: null, hint: "" };
    chart.box = make("div", { class: "chart", tabindex: "0", role: "group", "aria-label": summaryOf(plot) });
    chart.readout = make("p", { class: "readout" }, chart.hint);
    chart.reset = make("button", { type: "button", hidden: "" }, "Show the whole");
    chart.reset.addEventListener("click", () => zoom(chart.u, 0));
    chart.box.addEventListener("keydown", keys(chart));
    place.append(...[legend(chart), chart.box, chart.readout, chart.reset, numbers(plot)].filter(Boolean));
    charts.push(chart);
  }
  charts.forEach((chart) => draw(chart));
  new ResizeObserver(() => charts.forEach((chart) => { if (Math.abs(Math.floor(chart.box.clientWidth) - chart.width) > 1) draw(chart); })).observe(document.body);
  for (const box of document.querySelectorAll("main .scroll")) if (!box.closest("figure")) box.after(copier(box, box.querySelector("caption").textContent));
  for (const box of document.querySelectorAll("pre.command")) {
    const button = make("button", { type: "button", class: "copy" }, "Copy command");
    button.addEventListener("click", () => copy(box.textContent, button));
    box.after(button);
  }
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; charts.forEach((chart) => draw(chart, printed)); });
  addEventListener("afterprint", () => setTheme(theme));
  root.dataset.ready = "true";
})();
