// Draws the charts of a page, whose tables need no script.
"use strict";

(() => {
  const plots = new Map();

  // As the other times of the console.
  const hourCycle = "h23";
  const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", hourCycle });
  const day = new Intl.DateTimeFormat([], { day: "numeric", month: "short" });
  const LONGEST_OF_HOURS = 26 * 3600_000;

  function bytes(value) {
    if (value === 0) return "0 MiB";
    if (value < 2 ** 30) return `${Math.round(value / 2 ** 20)} MiB`;
    return `${Math.round(value / 2 ** 30 * 10) / 10} GiB`;
  }

  // Steps that are round in their unit: powers of two for memory, decimal ones for the rest.
  function roundStep(id, most) {
    if (id === "memory") return 2 ** Math.max(20, Math.ceil(Math.log2(Math.max(most, 2 ** 20) / 4)));
    const least = Math.max(1, most / 4);
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= least && Number.isInteger(step));
  }

  function steps(id, most) {
    const step = roundStep(id, most);
    return Array.from({ length: Math.max(1, Math.ceil(most / step)) + 1 }, (_, index) => index * step);
  }

  // Lines share their poll times; a line that did not exist yet has no value there, nor has one that pauses.
  function table(lines, everyMs) {
    const pauses = lines.flatMap(({ points }) => points.slice(1).flatMap(([at], index) =>
      at - points[index][0] > 3 * everyMs ? [points[index][0] + everyMs] : []));
    const moments = [...new Set([...lines.flatMap((line) => line.points.map(([at]) => at)), ...pauses])].sort((a, b) => a - b);
    const rows = new Map(moments.map((at, index) => [at, index]));
    const columns = lines.map((line) => {
      const column = new Array(moments.length).fill(null);
      for (const [at, value] of line.points) column[rows.get(at)] = value;
      // Times of other lines between two points are no pause of this one.
      line.points.slice(1).forEach(([at], index) => {
        const before = line.points[index][0];
        if (at - before > 3 * everyMs) return;
        for (let row = rows.get(before) + 1; row < rows.get(at); row += 1) column[row] = undefined;
      });
      return column;
    });
    return [moments.map((at) => at / 1000), ...columns];
  }

  function options(figure, element, history, panel) {
    // Colours are the style sheet's, light or dark.
    const ink = getComputedStyle(element).color;
    const grid = getComputedStyle(figure).borderTopColor;
    const most = Math.max(1, panel.limit?.value ?? (panel.id === "utilization" ? 100 : 0), ...panel.lines.flatMap((line) => line.points.map(([, value]) => value)));
    const splits = steps(panel.id, most);
    const isOfHours = history.now - history.from <= LONGEST_OF_HOURS;
    const font = "12px system-ui, sans-serif";
    // A line that the page does not list yet has no colour.
    const swatches = figure.querySelectorAll(".key .swatch");
    const colour = (index) => swatches[index] ? getComputedStyle(swatches[index]).stroke : ink;
    return {
      width: element.clientWidth,
      height: element.clientHeight,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      // As the style sheet has it for the marks above.
      padding: [8, 8, 0, 0],
      hooks: { setCursor: [(plot) => showReadout(plot, element, panel)], draw: [(plot) => drawLimit(plot, panel, ink), (plot) => drawIncidents(plot, figure, history)] },
      scales: {
        x: { range: [history.from / 1000, history.now / 1000] },
        y: { range: [0, splits[splits.length - 1]] },
      },
      axes: [
        { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, space: 90,
          values: (_, seconds) => seconds.map((second) => (isOfHours ? clock : day).format(new Date(second * 1000))) },
        { stroke: ink, font, size: 76, grid: { stroke: grid, width: 1 }, ticks: { show: false }, splits: () => splits,
          values: (_, values) => values.map((value) => panel.id === "memory" ? bytes(value) : String(value)) },
      ],
      series: [{}, ...panel.lines.map((line, index) => ({
        label: line.name,
        stroke: colour(index),
        width: 2,
        points: { show: line.points.length < 2 },
      }))],
    };
  }

  function strokeLine(plot, from, to, colour, dash) {
    const { ctx } = plot;
    ctx.save();
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
    ctx.restore();
  }

  function drawLimit(plot, panel, ink) {
    if (!panel.limit) return;
    const { left, width } = plot.bbox;
    const y = plot.valToPos(panel.limit.value, "y", true);
    strokeLine(plot, [left, y], [left + width, y], ink, [6, 4]);
  }

  function drawIncidents(plot, figure, history) {
    const mark = figure.querySelector("svg.marks rect");
    if (!mark) return;
    const { top, height } = plot.bbox;
    for (const { at } of history.incidents) {
      const x = plot.valToPos(at / 1000, "x", true);
      strokeLine(plot, [x, top], [x, top + height], getComputedStyle(mark).fill, []);
    }
  }

  const exact = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle });
  const exactOfDay = new Intl.DateTimeFormat([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle });
  // Most lines in the readout; the table below has them all.
  const READOUT_LINES = 8;

  const UNITS = { utilization: "%", power: "W", temperature: "°C", sm_clock: "MHz" };

  function amount(id, value) {
    if (id === "memory") return bytes(value);
    if (id === "clients") return value === 1 ? "1 client" : `${value} clients`;
    return `${Math.round(value)} ${UNITS[id]}`;
  }

  // The values of all lines at the cursor, shown beside it.
  function showReadout(plot, element, panel) {
    const readout = element.querySelector(".readout");
    const { idx, left } = plot.cursor;
    if (!readout) return;
    readout.hidden = idx === null || idx === undefined || left < 0 || panel.lines.length === 0;
    if (readout.hidden) return;
    const format = last.every_ms < 60_000 ? exact : exactOfDay;
    const at = format.format(new Date(plot.data[0][idx] * 1000));
    const lines = panel.lines.map((line, index) => [line.name, plot.data[index + 1][idx]])
      .filter(([, value]) => value !== null && value !== undefined)
      .sort(([, one], [, other]) => other - one);
    const rows = lines.slice(0, READOUT_LINES).map(([name, value]) => [name, amount(panel.id, value)]);
    if (lines.length > READOUT_LINES) rows.push([`and ${lines.length - READOUT_LINES} more`, ""]);
    readout.replaceChildren(...[[at, ""], ...rows].map(([name, value]) => {
      const row = document.createElement("p");
      const amount = document.createElement("b");
      amount.textContent = value;
      row.append(name, amount);
      return row;
    }));
    // On the side with more room.
    const x = left + plot.over.offsetLeft;
    const isRight = x > element.clientWidth / 2;
    readout.style.left = isRight ? "" : `${x + 12}px`;
    readout.style.right = isRight ? `${element.clientWidth - x + 12}px` : "";
    element.setAttribute("aria-valuenow", idx);
    element.setAttribute("aria-valuetext", [at, ...rows.map((row) => row.join(" "))].join(", "));
  }

  // By keyboard: one time after another.
  function moveCursor(element, key) {
    const plot = plots.get(element);
    const last = plot.data[0].length - 1;
    const now = plot.cursor.left < 0 ? last : plot.cursor.idx ?? last;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, ArrowDown: now - 1, ArrowUp: now + 1, PageDown: now - 60,
      PageUp: now + 60, Home: 0, End: last, "": now }[key];
    if (next === undefined) return false;
    const at = plot.data[0][Math.min(Math.max(next, 0), last)];
    plot.setCursor({ left: plot.valToPos(at, "x"), top: 10 });
    return true;
  }

  function prepare(element, figure, panel, moments) {
    element.removeAttribute("aria-hidden");
    element.setAttribute("role", "slider");
    element.tabIndex = 0;
    const caption = figure.querySelector("figcaption").textContent.trim();
    element.setAttribute("aria-label", `${caption}, moment by moment`);
    element.setAttribute("aria-valuemin", 0);
    element.setAttribute("aria-valuemax", moments - 1);
    if (!element.hasAttribute("aria-valuenow")) element.setAttribute("aria-valuenow", moments - 1);
    if (element.querySelector(".readout")) return;
    const readout = document.createElement("div");
    readout.className = "readout";
    readout.hidden = true;
    element.append(readout);
    element.addEventListener("keydown", (event) => { if (moveCursor(element, event.key)) event.preventDefault(); });
    element.addEventListener("focus", () => { if (element.matches(":focus-visible")) moveCursor(element, ""); });
    element.addEventListener("blur", () => plots.get(element).setCursor({ left: -10, top: -10 }));
  }

  function draw(history) {
    for (const panel of history.panels) {
      const figure = document.getElementById(`chart-${panel.id}`);
      const element = document.getElementById(`plot-${panel.id}`);
      if (!element?.clientWidth || panel.lines.length === 0) continue;
      const data = table(panel.lines, history.every_ms);
      prepare(element, figure, panel, data[0].length);
      const before = plots.get(element);
      const { left, top } = before?.cursor ?? { left: -10, top: -10 };
      before?.destroy();
      const plot = new uPlot(options(figure, element, history, panel), data, element);
      plots.set(element, plot);
      // The cursor stays at its time.
      if (left >= 0) plot.setCursor({ left, top });
    }
    for (const [element, plot] of plots) {
      if (!element.isConnected) { plot.destroy(); plots.delete(element); }
    }
  }

  let last = null;
  let loading = false;

  async function loadHistory() {
    const charts = document.querySelector("[data-history]");
    if (!charts || loading) return;
    loading = true;
    try {
      const response = await fetch(charts.dataset.history, { headers: { Accept: "application/json" } });
      if (response.ok) { last = await response.json(); draw(last); }
    } catch {
      // Not connected: the page shows that, and retries.
    } finally {
      loading = false;
    }
  }

  const redraw = () => { if (last) draw(last); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("resize", redraw);
  window.mpsConsole.enhance(loadHistory);
})();
